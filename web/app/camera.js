// A photo from the computer's camera, in a modal dialog: the picture live, one button to take it, one to leave.

import { h, icon } from "./dom.js";
import { say } from "./i18n.js";

/** A JPEG from the camera, or null when the visitor closes the dialog. Throws what getUserMedia throws. */
export async function takePhoto() {
  const stream = await navigator.mediaDevices.getUserMedia({
    video: { facingMode: "environment", width: { ideal: 1920 }, height: { ideal: 1080 } },
  });
  const video = h("video", { autoplay: true, playsinline: true });
  video.muted = true;
  video.srcObject = stream;
  const shutter = h("button.primary", { type: "button", autofocus: true }, icon("camera"), say(h("span"), "camera.shutter"));
  const leave = h("button.quiet", { type: "button" }, say(h("span"), "camera.close"));
  const dialog = h("dialog.camera", {}, video, h("div.actions", {}, shutter, leave));
  say(dialog, "camera.title", {}, "aria-label");
  document.body.append(dialog);
  try {
    return await new Promise((resolve) => {
      shutter.addEventListener("click", () => frame(video).then(resolve));
      leave.addEventListener("click", () => resolve(null));
      dialog.addEventListener("close", () => resolve(null)); // Escape
      dialog.showModal();
    });
  } finally {
    for (const track of stream.getTracks()) track.stop();
    dialog.close();
    dialog.remove();
  }
}

async function frame(video) {
  if (!video.videoWidth) await new Promise((resolve) => video.addEventListener("loadeddata", resolve, { once: true }));
  const canvas = h("canvas", { width: video.videoWidth, height: video.videoHeight });
  canvas.getContext("2d").drawImage(video, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", 0.92));
}
