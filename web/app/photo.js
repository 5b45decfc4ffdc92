// The photo: dropped, pasted, picked or taken; shown as a thumbnail. The picture never leaves the browser.

import { takePhoto } from "./camera.js";
import { h, icon } from "./dom.js";
import { hush, say } from "./i18n.js";

const THUMBNAIL = 960;

export class PhotoInput {
  #onphoto;
  #onproblem;
  #input = h("input.visually-hidden", { type: "file", accept: "image/*", onchange: () => this.#picked(this.#input) });
  #capture = h("input", {
    type: "file",
    accept: "image/*",
    capture: "environment",
    hidden: true,
    onchange: () => this.#picked(this.#capture),
  });
  #thumbnail = h("canvas.thumbnail", { role: "img", hidden: true });
  #invitation;
  #caption = h("p.caption", { hidden: true });
  #turn = 0;

  /** `onphoto(blob)` for every photo given; `onproblem(key, code)` for a camera that cannot be used. */
  constructor(onphoto, onproblem) {
    this.#onphoto = onphoto;
    this.#onproblem = onproblem;
    const touch = matchMedia("(pointer: coarse)").matches;
    this.#invitation = h(
      "span.invitation",
      {},
      icon("photo"),
      say(h("b"), touch ? "photo.tap" : "photo.drop"),
      say(h("span.hint"), touch ? "photo.hint.touch" : "photo.hint"),
    );
    // The label holds the input, so the whole area is its button for mouse, keyboard and screen reader alike.
    this.drop = h("label.drop", { "data-tandem": "photo" }, this.#input, this.#invitation, this.#thumbnail);
    say(this.#input, "photo.label", {}, "aria-label");
    const pick = h("button.small", { type: "button", onclick: () => this.#input.click() }, icon("photo"), say(h("span"), "photo.pick"));
    const take = h("button.small", { type: "button", onclick: () => this.#take(touch) }, icon("camera"), say(h("span"), "photo.take"));
    this.element = h("div.photo", {}, this.drop, this.#capture, this.#caption, h("div.actions", {}, pick, take));
    this.#listen();
  }

  /** Put the keyboard where a photo can be given. */
  focus() {
    this.#input.focus();
  }

  #listen() {
    const files = (transfer) => [...(transfer?.types ?? [])].includes("Files");
    // The whole page takes the drop: a photo dropped beside the frame must not make the browser leave the page.
    document.addEventListener("dragover", (event) => {
      if (!files(event.dataTransfer)) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "copy";
      this.drop.classList.add("over");
    });
    for (const name of ["dragleave", "dragend"]) {
      document.addEventListener(name, (event) => {
        if (!event.relatedTarget) this.drop.classList.remove("over");
      });
    }
    document.addEventListener("drop", (event) => {
      if (!files(event.dataTransfer)) return;
      event.preventDefault();
      this.drop.classList.remove("over");
      this.#give(event.dataTransfer.files);
    });
    // Text pasted into a field carries no files and is left alone.
    document.addEventListener("paste", (event) => {
      if (!event.clipboardData?.files.length) return;
      event.preventDefault();
      this.#give(event.clipboardData.files);
    });
  }

  #picked(input) {
    this.#give(input.files);
    input.value = ""; // the same file may be picked again
  }

  #give(files) {
    const list = [...files];
    const blob = list.find((file) => file.type.startsWith("image/")) ?? list[0];
    if (!blob) return;
    this.#draw(blob);
    this.#onphoto(blob);
  }

  async #take(touch) {
    // Phones have a better camera app than we could draw.
    if (touch || !navigator.mediaDevices?.getUserMedia) return this.#capture.click();
    try {
      const blob = await takePhoto();
      if (blob) this.#give([blob]);
    } catch (error) {
      const missing = ["NotFoundError", "OverconstrainedError"].includes(error.name);
      this.#onproblem(missing ? "camera.missing" : "camera.refused", "camera");
    }
  }

  async #draw(blob) {
    const turn = ++this.#turn;
    let picture = null;
    try {
      // Decoded and reduced off the main thread; a big photo never exists here in full size.
      picture = await createImageBitmap(blob, { resizeWidth: THUMBNAIL, resizeQuality: "medium" });
    } catch {
      // describe() will say in its own words what is wrong with the file.
    }
    if (turn !== this.#turn) return picture?.close();
    this.#thumbnail.hidden = !picture;
    this.#invitation.hidden = Boolean(picture);
    this.drop.classList.toggle("filled", Boolean(picture));
    this.#caption.hidden = !blob.name;
    this.#caption.textContent = blob.name ?? "";
    if (!picture) return hush(this.#thumbnail, "aria-label");
    this.#thumbnail.width = picture.width;
    this.#thumbnail.height = picture.height;
    this.#thumbnail.getContext("2d").drawImage(picture, 0, 0);
    picture.close();
    say(this.#thumbnail, blob.name ? "photo.thumbnail" : "photo.thumbnail.unnamed", { name: blob.name }, "aria-label");
  }
}
