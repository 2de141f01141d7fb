// The start page's mechanism that runs as its controls are moved: steps by exported code
// (two_link.js, made by docs/scripts/live.py), drawings by this file. No other is loaded.
"use strict";

/**
 * Motion of 10 s, or until it fails: { ts, q1, q2, drift, failed }.
 *
 * drift is the distance of the tip from its target in metres, at the start and after each step h;
 * failed the time in seconds at which a run ended early, otherwise null. A call of the code makes
 * a fixed number of steps, and the next one goes on from its end.
 */
function motion(run, { K_D, K_P, h, t1 = 10 }) {
  const steps = Math.round(t1 / h);
  const [ts, q1, q2, drift] = [0, 1, 2, 3].map(() => new Float64Array(steps + 1));
  let { q, v } = twoLink.inputs;
  for (let done = 0; done < steps; done += twoLink.stepsOfCall) {
    const part = run(
      { q, v, formulation_stabilization_K_D: K_D, formulation_stabilization_K_P: K_P },
      { t0: done * h, t1: (done + twoLink.stepsOfCall) * h });
    for (let i = done && 1; i <= twoLink.stepsOfCall && done + i <= steps; i++) {
      const at = done + i, far = Math.hypot(...part.phi[i]);
      // Of the failed step on, or so far away that the arm does not follow any more.
      if (!(far < 10)) {
        const good = [ts, q1, q2, drift].map((x) => x.slice(0, at));
        return { ts: good[0], q1: good[1], q2: good[2], drift: good[3], failed: at * h };
      }
      ts[at] = part.ts[i];
      [q1[at], q2[at]] = part.q[i];
      drift[at] = far;
    }
    ({ q, v } = part.final);
  }
  return { ts, q1, q2, drift, failed: null };
}

/** Gains by theory: those of the method at a step of 1 s, for a step h. */
function theory(method, h) {
  const { K_D, K_P } = twoLink.methods[method].gainsAtUnitStep;
  return { K_D: K_D / h, K_P: K_P / (h * h) };
}

/** Code of all methods, by their names: functions `run`. */
async function loaded() {
  const runs = {};
  for (const [name, { code }] of Object.entries(twoLink.methods)) {
    const bytes = Uint8Array.from(atob(code), (x) => x.charCodeAt(0));
    ({ run: runs[name] } = await twoLink.load(bytes));
  }
  return runs;
}

const CONTROLS = `
<div class="live-views">
<canvas data-live="arm" role="img" aria-label="The arm in motion; its tip is to follow a target on a line"></canvas>
<canvas data-live="plot" role="img" aria-label="Distance of the tip from its target against time"></canvas>
</div>
<div class="live-controls">
<label>Method <select data-live="method"></select></label>
<label>Step <span data-live="h-said"></span>
<span class="live-range"><input type="range" data-live="h" min="2" max="50" step="1" value="10"></span></label>
<label>K_D <span data-live="K_D-said"></span>
<span class="live-range"><input type="range" data-live="K_D" min="-1" max="4" step="0.01"><i data-live="K_D-mark"></i></span></label>
<label>K_P <span data-live="K_P-said"></span>
<span class="live-range"><input type="range" data-live="K_P" min="-1" max="7" step="0.01"><i data-live="K_P-mark"></i></span></label>
<label>Time <span data-live="time-said"></span>
<span class="live-range"><input type="range" data-live="time" min="0" max="10" step="0.01" value="0"></span></label>
<div class="live-buttons">
<button type="button" data-live="theory">▲ Gains by theory</button>
<button type="button" data-live="guess">Guessed gains</button>
<button type="button" data-live="play"></button>
</div>
</div>
<p data-live="said" role="status"></p>`;

const UNITS = { K_D: "1/s", K_P: "1/s²" };
const UP = "#d55e00", OWN = "#1f8dd6"; // on light and dark grounds

/** Put the controls into an element and run. */
async function live(element) {
  const runs = await loaded();
  element.innerHTML = CONTROLS;
  const part = (name) => element.querySelector(`[data-live="${name}"]`);
  const names = Object.keys(twoLink.methods);
  part("method").append(...names.map((x) => new Option(x, x)));

  let own, best, playing, time = 0, last = null, visible = true;
  const settings = () => ({ h: part("h").value / 1000, ...gains() });
  const gains = () => ({ K_D: 10 ** part("K_D").value, K_P: 10 ** part("K_P").value });
  // A range has steps: what stands on a mark is the gain of the mark.
  const exact = {};
  function set(values) {
    for (const name of ["K_D", "K_P"]) {
      part(name).value = Math.log10(values[name]);
      exact[name] = values[name];
    }
  }

  function update() {
    const method = part("method").value, h = settings().h;
    const chosen = { h, ...gains(), ...exact }, marked = { h, ...theory(method, h) };
    const from = performance.now();
    own = motion(runs[method], chosen);
    const spent = performance.now() - from;
    best = motion(runs[method], marked);
    part("h-said").textContent = `${part("h").value} ms`;
    part("h").setAttribute("aria-valuetext", `${part("h").value} milliseconds`);
    for (const name of ["K_D", "K_P"]) {
      const said = `${short(chosen[name])} ${UNITS[name]}`, range = part(name);
      part(`${name}-said`).textContent = `${said} (theory ${short(marked[name])})`;
      range.setAttribute("aria-valuetext", `${said}, theory ${short(marked[name])}`);
      const at = (Math.log10(marked[name]) - range.min) / (range.max - range.min);
      part(`${name}-mark`).style.setProperty("--at", Math.min(Math.max(at, 0), 1));
    }
    const gone = own.drift.findLastIndex((x) => x > own.drift[0] / 100) + 1;
    const left = Math.max(...own.drift.slice(Math.floor(own.drift.length / 2)));
    part("said").textContent = own.failed === null
      ? (gone < own.ts.length
        ? `Below a hundredth of the start from ${short(own.ts[gone])} s on; `
        : "Not below a hundredth of the start at the end; ") +
        `at most ${left.toExponential(1)} m in the second half. ` +
        `Computed in ${spent.toFixed(0)} ms.`
      : `The tip is lost at ${own.failed.toFixed(2)} s: these gains do not keep it with this step.`;
    element.dataset.spent = spent;
    draw();
  }

  function draw() {
    const i = Math.min(Math.floor(time / own.ts[1] || 0), own.ts.length - 1);
    drawArm(part("arm"), own, i, time);
    drawPlot(part("plot"), own, best, time);
    part("time").value = time;
    part("time-said").textContent = `${time.toFixed(1)} s`;
    part("time").setAttribute("aria-valuetext", `${time.toFixed(1)} seconds`);
  }

  function play(on) {
    playing = on;
    part("play").textContent = on ? "Pause" : "Play";
  }

  function tick(now) {
    if (playing && visible) {
      if (last !== null) time = (time + Math.min(now - last, 100) / 1000) % 10;
      draw();
    }
    last = now;
    requestAnimationFrame(tick);
  }

  for (const name of ["K_D", "K_P"])
    part(name).addEventListener("input", () => { delete exact[name]; update(); });
  for (const name of ["h", "method"]) part(name).addEventListener("input", update);
  part("theory").addEventListener("click", () => {
    set(theory(part("method").value, settings().h));
    update();
  });
  part("guess").addEventListener("click", () => { set(twoLink.guess); update(); });
  part("play").addEventListener("click", () => play(!playing));
  part("time").addEventListener("input", () => {
    play(false);
    time = Number(part("time").value);
    draw();
  });
  new IntersectionObserver((all) => { visible = all.at(-1).isIntersecting; }).observe(element);
  new MutationObserver(draw).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
  addEventListener("resize", draw);
  set(twoLink.guess);
  play(!matchMedia("(prefers-reduced-motion: reduce)").matches);
  update();
  requestAnimationFrame(tick);
}

/** Three digits, without powers of ten below a million. */
function short(x) {
  return x < 1e6 ? String(Number(x.toPrecision(3))) : x.toExponential(2);
}

/** An empty canvas with fine pixels: its context, width and height, and the page's colour of text. */
function canvas(element) {
  const width = element.clientWidth, height = element.clientHeight, fine = devicePixelRatio || 1;
  element.width = width * fine;
  element.height = height * fine;
  const pen = element.getContext("2d"), text = getComputedStyle(element).color;
  pen.scale(fine, fine);
  pen.font = "12px sans-serif";
  pen.lineJoin = pen.lineCap = "round";
  return { pen, width, height, text };
}

function line(pen, points, color, width, dash = []) {
  pen.beginPath();
  points.forEach(([x, y], i) => (i ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  Object.assign(pen, { strokeStyle: color, lineWidth: width });
  pen.setLineDash(dash);
  pen.stroke();
  pen.setLineDash([]);
}

function drawArm(element, { q1, q2, ts, failed }, now, time) {
  const { pen, width, height, text } = canvas(element);
  const scale = Math.min(width / 3.1, height / 2.2);
  const place = ([x, y]) => [width / 2 + scale * x, height - scale * (y + 0.6)];
  const given = twoLink.inputs;
  const elbow = (i) => [given.system_length1 * Math.cos(q1[i]),
    given.system_length1 * Math.sin(q1[i])];
  const tip = (i) => [elbow(i)[0] + given.system_length2 * Math.cos(q1[i] + q2[i]),
    elbow(i)[1] + given.system_length2 * Math.sin(q1[i] + q2[i])];
  const end = given.system_target_amplitude, line_y = given.system_target_height;
  line(pen, [[-end, line_y], [end, line_y]].map(place), text, 1, [4, 4]);
  const from = Math.max(0, now - Math.round(1.5 / (ts[1] || 1)));
  const trail = Array.from({ length: now - from + 1 }, (_, i) => place(tip(from + i)));
  line(pen, trail, UP, 1.5);
  line(pen, [[0, 0], elbow(now), tip(now)].map(place), OWN, 4);
  dot(pen, place([0, 0]), 5, text);
  dot(pen, place(elbow(now)), 4, OWN);
  dot(pen, place(tip(now)), 4, OWN);
  const target = [end * Math.cos(given.system_target_frequency * time), line_y];
  pen.beginPath();
  pen.arc(...place(target), 9, 0, 2 * Math.PI);
  Object.assign(pen, { strokeStyle: UP, lineWidth: 2 });
  pen.stroke();
  if (failed !== null && time >= failed) {
    pen.fillStyle = UP;
    pen.fillText("lost", 8, 18);
  }
}

function dot(pen, [x, y], radius, color) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 2 * Math.PI);
  pen.fillStyle = color;
  pen.fill();
}

function drawPlot(element, own, best, time) {
  const { pen, width, height, text } = canvas(element);
  const low = -16, high = 1, left = 44, right = width - 8, top = 24, bottom = height - 34;
  const x = (t) => left + (right - left) * t / 10;
  const y = (d) =>
    bottom - (bottom - top) * (Math.max(Math.log10(Math.max(d, 1e-16)), low) - low) / (high - low);
  pen.fillStyle = text;
  pen.textAlign = "left";
  pen.fillText("distance of tip and target [m]", 4, 14);
  pen.textAlign = "right";
  for (let power = -15; power <= 0; power += 5) {
    pen.globalAlpha = 0.25;
    line(pen, [[left, y(10 ** power)], [right, y(10 ** power)]], text, 1);
    pen.globalAlpha = 1;
    pen.fillText(power ? `1e${power}` : "1", left - 6, y(10 ** power) + 4);
  }
  pen.textAlign = "center";
  for (const t of [0, 5, 10]) pen.fillText(t, Math.min(x(t), right - 6), bottom + 14);
  pen.fillText("time [s]", (left + right) / 2, bottom + 28);
  const curve = ({ ts, drift }) => {
    const every = Math.max(1, Math.floor(ts.length / 1000)); // no more points than pixels
    return Array.from({ length: Math.ceil(ts.length / every) },
      (_, i) => [x(ts[i * every]), y(drift[i * every])]);
  };
  line(pen, curve(best), UP, 1.5, [5, 4]);
  line(pen, curve(own), OWN, 2);
  line(pen, [[x(time), top], [x(time), bottom]], text, 1);
  pen.textAlign = "right";
  pen.fillStyle = UP;
  pen.fillText("by theory", right, top + 2);
  pen.fillStyle = OWN;
  pen.fillText("your gains", right - 66, top + 2);
}

if (typeof document !== "undefined") {
  const element = document.getElementById("two-link");
  live(element).catch(() => {
    // Without WebAssembly: the film that a page without JavaScript shows.
    element.innerHTML = document.querySelector("#two-link + noscript").textContent;
  });
}
