// Numbers as people read them, in the language of the interface.

import { language } from "./i18n.js";

const locale = () => (language() === "zh" ? "zh-Hans" : "en");

/** Bytes in decimal megabytes, as download sizes are told: "98.1 MB". */
export function megabytes(bytes) {
  const digits = bytes < 100e6 ? 1 : 0;
  return `${new Intl.NumberFormat(locale(), { maximumFractionDigits: digits }).format(bytes / 1e6)} MB`;
}

/** Bytes in binary mebibytes, as memory is counted: "112 MiB". */
export function mebibytes(bytes) {
  const value = bytes / 2 ** 20;
  return `${new Intl.NumberFormat(locale(), { maximumFractionDigits: value < 10 ? 1 : 0 }).format(value)} MiB`;
}

/** Bytes of any size as memory is counted: "256 B", "11.2 KiB", "2.2 MiB". */
export function memorySize(bytes) {
  if (bytes >= 2 ** 20) return `${decimal(bytes / 2 ** 20)} MiB`;
  return bytes < 1024 ? `${decimal(bytes, 0)} B` : `${decimal(bytes / 1024)} KiB`;
}

/** A moment (ms since the epoch) as the clock on the wall: "18:03:12". */
export function clock(at) {
  const parts = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  return new Intl.DateTimeFormat(locale(), parts).format(at);
}

/** A probability from 0 to 1: "61 %", "0.4 %". */
export function percent(p) {
  const digits = p > 0 && p < 0.0995 ? 1 : 0;
  return new Intl.NumberFormat(locale(), { style: "percent", maximumFractionDigits: digits }).format(p);
}

export function decimal(value, digits = 1) {
  return new Intl.NumberFormat(locale(), { maximumFractionDigits: digits }).format(value);
}

/** The name of a language, in the language of the interface: "Spanish". */
export function languageName(code) {
  try {
    return new Intl.DisplayNames([locale()], { type: "language" }).of(code) ?? code;
  } catch {
    return code;
  }
}
