// What part of the drawing is seen: moved and scaled, by mouse, touch and keys.

const SCALE_MIN = 0.4;
const SCALE_MAX = 24;
const MARGIN = 28;

export class View {
  constructor() {
    this.scale = 1;
    this.x = 0;
    this.y = 0;
    this.touched = false;
  }

  /** Show everything between these corners, in a window of this size. */
  fit([left, top, right, bottom], width, height) {
    const wide = Math.max(1, right - left);
    const high = Math.max(1, bottom - top);
    const room = Math.min((width - 2 * MARGIN) / wide, (height - 2 * MARGIN) / high);
    this.scale = Math.min(Math.max(room, 0.05), 4);
    this.x = width / 2 - (this.scale * (left + right)) / 2;
    this.y = height / 2 - (this.scale * (top + bottom)) / 2;
    this.touched = false;
  }

  move(dx, dy) {
    this.x += dx;
    this.y += dy;
    this.touched = true;
  }

  /** Scale, with the point under the pointer staying where it is. */
  zoom(factor, x, y) {
    const scale = Math.min(SCALE_MAX, Math.max(SCALE_MIN, this.scale * factor));
    const by = scale / this.scale;
    this.x = x - (x - this.x) * by;
    this.y = y - (y - this.y) * by;
    this.scale = scale;
    this.touched = true;
  }

  /** How a picture that was drawn for another view has to be moved and scaled for this one. */
  from(other) {
    const by = this.scale / other.scale;
    return [by, this.x - other.x * by, this.y - other.y * by];
  }

  copy() {
    return Object.assign(new View(), this);
  }
}

/** Have a canvas move and scale a scene. */
export function listen(canvas, scene) {
  const pointers = new Map();
  let moved = 0;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, place(event));
    if (pointers.size === 1) moved = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    const before = pointers.get(event.pointerId);
    if (!before) {
      scene.hover(x, y);
      return;
    }
    if (pointers.size === 2) {
      const [other] = [...pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
      const was = Math.hypot(before[0] - other[0], before[1] - other[1]);
      const now = Math.hypot(x - other[0], y - other[1]);
      if (was > 4) scene.zoom(now / was, (x + other[0]) / 2, (y + other[1]) / 2);
    } else {
      moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
      scene.move(x - before[0], y - before[1]);
    }
    pointers.set(event.pointerId, [x, y]);
  });
  const ended = (event) => {
    const at = pointers.get(event.pointerId);
    pointers.delete(event.pointerId);
    if (at && event.type === "pointerup" && moved < 5) scene.choose(...at);
  };
  canvas.addEventListener("pointerup", ended);
  canvas.addEventListener("pointercancel", ended);
  canvas.addEventListener("pointerleave", () => scene.hover(-1e6, -1e6));
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      scene.zoom(Math.exp(-event.deltaY * 0.0016), ...place(event));
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    const middle = [canvas.clientWidth / 2, canvas.clientHeight / 2];
    const keys = {
      "+": () => scene.zoom(1.25, ...middle),
      "=": () => scene.zoom(1.25, ...middle),
      "-": () => scene.zoom(0.8, ...middle),
      0: () => scene.fit(),
      ArrowLeft: () => scene.move(40, 0),
      ArrowRight: () => scene.move(-40, 0),
      ArrowUp: () => scene.move(0, 40),
      ArrowDown: () => scene.move(0, -40),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      keys[event.key]();
    }
  });
}
