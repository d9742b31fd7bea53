/** Requests to the server. Where it wants a key, the person is asked for it, and the request is sent again. */

import { askForKey, key } from "./key.js";

const INSPECT = new URL("./", import.meta.url);
const ROOT = new URL("../", import.meta.url);

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
  return (await request(new URL(path, INSPECT), { signal })).json();
}

/** @param {string} path below /inspect @param {unknown} body @param {AbortSignal} [signal] @returns {Promise<any>} */
export async function post(path, body, signal) {
  return (await request(new URL(path, INSPECT), posted(body, signal))).json();
}

/**
 * The response of the API at `path`, which may be a stream.
 *
 * @param {string} path
 * @param {unknown} body
 * @param {AbortSignal} [signal]
 */
export async function send(path, body, signal) {
  return request(new URL(path, ROOT), posted(body, signal));
}

/** @param {unknown} body @param {AbortSignal} [signal] @returns {RequestInit} */
function posted(body, signal) {
  return { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal };
}

/** @param {URL} url @param {RequestInit} options @returns {Promise<Response>} */
async function request(url, options) {
  for (;;) {
    const sent = key();
    const headers = new Headers(options.headers);
    if (sent) headers.set("authorization", `Bearer ${sent}`);
    const response = await fetch(url, { ...options, headers, credentials: "omit" });
    if (response.ok) return response;
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
