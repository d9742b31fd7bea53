// What the programs of the JavaScript clients share: the task, and a line of JSON for each feature (see common.py).

export const task = JSON.parse(process.env.DOVETAIL_TASK);
export const root = task.url;
export const url = `${task.url}/v1`;
export const model = task.model;
export const key = "any-key";
export const tooLong = "word ".repeat(task.too_long_words);

export const resultOf = (city) => JSON.stringify({ result: task.results[city] ?? "grey" });

/** The message of the error of `kind` that `request` must reject with. */
export async function rejects(kind, request) {
  try {
    await request();
  } catch (error) {
    if (error instanceof kind) return `${error.constructor.name}: ${error.message}`;
    throw error;
  }
  throw new Error(`no ${kind.name} was thrown`);
}

/** Run each function of `features` and print what it saw, under the feature's name. */
export async function main(features) {
  for (const [feature, run] of Object.entries(features)) {
    let line;
    try {
      line = { feature, saw: (await run()) ?? null };
    } catch (error) {
      console.error(error);
      line = { feature, error: `${error?.constructor?.name}: ${error?.message}` };
    }
    console.log(JSON.stringify(line));
  }
  process.exit(0);
}
