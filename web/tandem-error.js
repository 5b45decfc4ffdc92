/**
 * The only kind of error that Tandem throws.
 * `code`: no_device device_lost out_of_memory bad_weights bad_model bad_image context_full cloud_unavailable busy closed
 * bad_argument. `message`: one sentence for people. `details`: the figures behind it.
 */
export class TandemError extends Error {
  constructor(code, message, details = {}) {
    super(message);
    this.name = "TandemError";
    this.code = code;
    this.details = details;
  }

  static from({ code, message, details }) {
    return new TandemError(code, message, details);
  }
}
