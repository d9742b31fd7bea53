/** Requests to the server. Where it wants a key, the person is asked for it, and the request is sent again. */

import { askForKey, key } from "./key.js";

const INSPECT = new URL("./", import.meta.url);

/** What the server refused, in its own words. */
export class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** @param {string} path below /inspect @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function get(path, signal) {
  for (;;) {
    const sent = key();
    const headers = new Headers(sent ? { authorization: `Bearer ${sent}` } : {});
    const response = await fetch(new URL(path, INSPECT), { headers, signal, credentials: "omit" });
    if (response.ok) return response.json();
    const message = await reason(response);
    if (response.status !== 401) throw new Refused(response.status, message);
    await askForKey(sent, message);
  }
}

/** @param {Response} response */
async function reason(response) {
  try {
    return String((await response.json()).error.message);
  } catch {
    return `the server answered with status ${response.status}`;
  }
}
