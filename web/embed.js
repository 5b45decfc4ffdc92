/*
 * <tandem-copywriter>: the copywriter in a shop's own page, one script tag and one element:
 *
 *   <script src="https://tandem.example/embed.js" async></script>
 *   <tandem-copywriter site="pk_rosa_5f2c9e" lang="en"></tandem-copywriter>
 *
 * Attributes: site (the shop's public key, where the gateway has shops), lang, model, vision, mode, adapter, pool,
 * cloud, telemetry (as the page's query parameters), title.
 * Events (they bubble): "tandem-result", detail { text, labels, source, accepted }, after each text that is complete
 * (accepted: false) and when the visitor presses "Use this text", with their edits (accepted: true);
 * "tandem-error", detail { code, message }.
 */
(() => {
  const script = document.currentScript ?? document.querySelector('script[src*="embed.js"]');
  const base = new URL(".", script.src);
  const PARAMETERS = ["site", "lang", "model", "vision", "mode", "adapter", "pool", "cloud", "telemetry"];
  const TITLES = { zh: "Tandem 商品文案助手", en: "Tandem: product copy from a photo" };
  const MIN_HEIGHT = 160;
  const MAX_HEIGHT = 6000;

  class TandemCopywriter extends HTMLElement {
    #frame = null;
    #listen = (event) => this.#hear(event);

    connectedCallback() {
      if (this.#frame) return;
      const url = new URL("widget.html", base);
      for (const name of PARAMETERS) {
        if (this.hasAttribute(name)) url.searchParams.set(name, this.getAttribute(name));
      }
      // The widget answers to this origin only; the browser drops its messages if that is not who we are.
      url.searchParams.set("parent", location.origin);
      const frame = (this.#frame = document.createElement("iframe"));
      const lang = (this.getAttribute("lang") ?? navigator.language).toLowerCase().startsWith("zh") ? "zh" : "en";
      frame.title = this.getAttribute("title") ?? TITLES[lang];
      frame.allow = `camera ${base.origin}; clipboard-write ${base.origin}`;
      frame.referrerPolicy = "origin";
      // Set through the CSSOM: a strict style-src of the host page allows that, and would refuse a style element.
      Object.assign(this.style, { display: this.style.display || "block" });
      Object.assign(frame.style, { display: "block", width: "100%", height: "640px", border: "0" });
      frame.style.colorScheme = "normal";
      frame.src = url.href;
      addEventListener("message", this.#listen);
      this.attachShadowOnce().replaceChildren(frame);
    }

    disconnectedCallback() {
      removeEventListener("message", this.#listen);
      this.#frame?.remove();
      this.#frame = null;
    }

    attachShadowOnce() {
      return this.shadowRoot ?? this.attachShadow({ mode: "open", delegatesFocus: true });
    }

    #hear(event) {
      // Only our own frame, and only while our own origin is what it shows.
      if (!this.#frame || event.source !== this.#frame.contentWindow || event.origin !== base.origin) return;
      const { tandem, type, detail } = event.data ?? {};
      if (tandem !== 1) return;
      if (type === "height" && Number.isFinite(detail)) {
        this.#frame.style.height = `${Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, Math.ceil(detail)))}px`;
      } else if (type === "result" || type === "error") {
        this.dispatchEvent(new CustomEvent(`tandem-${type}`, { detail, bubbles: true, composed: true }));
      }
    }
  }

  if (!customElements.get("tandem-copywriter")) customElements.define("tandem-copywriter", TandemCopywriter);
})();
