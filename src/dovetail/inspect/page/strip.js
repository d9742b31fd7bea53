/**
 * The time of each step as a strip of bars; a click selects the step's first token.
 *
 * @typedef {import("./tokens.js").StepOfAnswer} StepOfAnswer
 */

import { count, duration, element } from "./dom.js";

const HEIGHT = 56;

export class Strip {
  /** @param {StepOfAnswer[]} steps @param {(step: StepOfAnswer) => void} onSelect */
  constructor(steps, onSelect) {
    this.steps = steps;
    this.selected = 0;
    const times = steps.slice(1).map((step) => step.seconds).sort((a, b) => a - b);
    /** The full height; a single long step does not flatten all others. */
    this.most = times.length ? (times[Math.floor(times.length * 0.99)] || 1e-6) : (steps[0]?.seconds || 1e-6);
    this.canvas = element("canvas", {
      class: "strip", role: "img", "aria-label": described(steps, times), title: described(steps, times),
      click: (event) => {
        const step = this.steps[Math.floor((event.offsetX / this.canvas.clientWidth) * this.steps.length)];
        if (step) onSelect(step);
      },
    });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** @param {StepOfAnswer} step */
  select(step) {
    this.selected = step.number;
    this.draw();
  }

  draw() {
    const { canvas, steps } = this;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const width = canvas.clientWidth;
    const scale = devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = HEIGHT * scale;
    context.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const columns = Math.min(width, steps.length);
    for (let column = 0; column < columns; column++) {
      const from = Math.floor((column * steps.length) / columns);
      const to = Math.max(from + 1, Math.floor(((column + 1) * steps.length) / columns));
      const slowest = steps.slice(from, to).reduce((most, step) => (step.seconds > most.seconds ? step : most));
      const height = Math.max(2, Math.min(1, slowest.seconds / this.most) * (HEIGHT - 4));
      const left = (column * width) / columns;
      const room = Math.max(1, width / columns - (width / columns > 3 ? 1 : 0));
      context.fillStyle = style.getPropertyValue(slowest.step.accepted ? "--strip-draft" : "--strip-model");
      context.fillRect(left, HEIGHT - height, room, height);
    }
    context.fillStyle = style.getPropertyValue("--strip-cursor");
    context.fillRect((this.selected * width) / Math.max(1, steps.length), 0, Math.max(2, width / Math.max(1, steps.length)), 3);
  }
}

/** @param {StepOfAnswer[]} steps @param {number[]} times those after the first step, sorted */
function described(steps, times) {
  const first = steps.length ? `the first after ${duration(steps[0].seconds)}` : "";
  if (!times.length) return `Time per step: ${count(steps.length, "step")}, ${first}`;
  const [median, slowest] = [times[Math.floor(times.length / 2)], times[times.length - 1]];
  return `Time per step: ${count(steps.length, "step")}, ${first}; half of the others within ${duration(median)}, the slowest ${duration(slowest)}`;
}
