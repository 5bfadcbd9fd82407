"use strict";
(() => {
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (still) return;
  for (const box of document.querySelectorAll(".player")) {
    const show = box.dataset.frames ? pictures(box) : formation(box);
    if (!show) continue;
    box.hidden = false;
    const strip = box.parentElement.querySelector(".stills");
    if (strip) strip.hidden = true;
    play(box, show);
  }

  function bytes(text) {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  }

  function play(box, show) {
    const [button, slider, told] = ["button", "input", "output"].map((name) => box.querySelector(name));
    const last = show.moments - 1;
    let at = 0, running = false, before = 0, seen = true;
    function draw() {
      show.draw(at);
      slider.value = at;
      told.textContent = show.text(Math.round(at));
      button.textContent = running ? "pause" : "play";
    }
    function tick(now) {
      if (!running) return;
      if (seen) at = Math.min(last, at + Math.min(0.1, (now - before) / 1000) * show.rate);
      before = now;
      if (at >= last) running = false;
      draw();
      if (running) requestAnimationFrame(tick);
    }
    function start() {
      if (at >= last) at = 0;
      running = last > 0;
      before = performance.now();
      requestAnimationFrame(tick);
      draw();
    }
    button.addEventListener("click", () => {
      if (running) { running = false; draw(); } else start();
    });
    slider.addEventListener("input", () => { running = false; at = Number(slider.value); draw(); });
    slider.max = last;
    new IntersectionObserver((entries) => { seen = entries[entries.length - 1].isIntersecting; }).observe(box);
    new ResizeObserver(draw).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    box.dataset.ready = "yes";
    start();
  }

  function pictures(box) {
    const frames = JSON.parse(box.dataset.frames), steps = JSON.parse(box.dataset.steps);
    const image = box.querySelector("img"), text = box.querySelector("pre");
    let shown = -1;
    return {
      moments: frames.length,
      rate: Number(box.dataset.rate),
      text: (frame) => `step ${steps[frame]} of ${steps[steps.length - 1]}`,
      draw: (at) => {
        const frame = Math.round(at);
        if (frame === shown) return;
        shown = frame;
        if (image) image.src = "data:image/png;base64," + frames[frame];
        else text.textContent = frames[frame];
      },
    };
  }

  function formation(box) {
    const canvas = box.querySelector("canvas"), pen = canvas.getContext("2d");
    if (!pen) return null;
    const agents = Number(box.dataset.agents), moments = Number(box.dataset.moments), dot = Number(box.dataset.dot);
    const place = new Int16Array(bytes(box.dataset.position).buffer);
    const slots = new Int16Array(bytes(box.dataset.slots).buffer);
    const bits = bytes(box.dataset.held), row = Math.ceil(agents / 8);
    const steps = JSON.parse(box.dataset.steps), shares = JSON.parse(box.dataset.shares);
    const tail = agents <= 300 ? 8 : agents <= 1500 ? 4 : 0;
    const holds = (frame, agent) => (bits[frame * row + (agent >> 3)] >> (7 - (agent & 7))) & 1;

    function dots(list, x, y, radius, colour) {
      pen.fillStyle = colour;
      pen.beginPath();
      for (const agent of list) {
        pen.moveTo(x(agent) + radius, y(agent));
        pen.arc(x(agent), y(agent), radius, 0, 2 * Math.PI);
      }
      pen.fill();
    }

    function draw(at) {
      const side = canvas.clientWidth, scale = window.devicePixelRatio || 1;
      if (!side) return;
      if (canvas.width !== Math.round(side * scale)) canvas.width = canvas.height = Math.round(side * scale);
      pen.setTransform(scale, 0, 0, scale, 0, 0);
      pen.clearRect(0, 0, side, side);
      const style = getComputedStyle(document.documentElement);
      const colour = (name) => style.getPropertyValue(name).trim();
      const pixel = (value) => (value / 65534 + 0.5) * side;
      const frame = Math.min(moments - 1, Math.floor(at)), next = Math.min(moments - 1, frame + 1), part = at - frame;
      const where = (axis) => (agent) => {
        const index = 2 * agent + axis, width = 2 * agents;
        return pixel(place[frame * width + index] * (1 - part) + place[next * width + index] * part);
      };
      const x = where(0), y = where(1), radius = Math.max(1.1, dot * side);
      const all = [...Array(agents).keys()];
      pen.strokeStyle = colour("--missing");
      pen.lineWidth = 1;
      pen.beginPath();
      for (const slot of all) {
        const cx = pixel(slots[2 * slot]), cy = pixel(slots[2 * slot + 1]);
        pen.moveTo(cx + radius * 1.35, cy);
        pen.arc(cx, cy, radius * 1.35, 0, 2 * Math.PI);
      }
      pen.globalAlpha = 0.6;
      pen.stroke();
      if (tail) {
        pen.strokeStyle = colour("--soft");
        pen.globalAlpha = 0.35;
        pen.beginPath();
        for (const agent of all) {
          const begin = Math.max(0, frame - tail);
          for (let moment = begin; moment <= frame; moment++) {
            const index = 2 * (moment * agents + agent);
            const put = moment === begin ? "moveTo" : "lineTo";
            pen[put](pixel(place[index]), pixel(place[index + 1]));
          }
          pen.lineTo(x(agent), y(agent));
        }
        pen.stroke();
      }
      pen.globalAlpha = 1;
      const shown = Math.round(at);
      dots(all.filter((agent) => !holds(shown, agent)), x, y, radius, colour("--empty_patch"));
      dots(all.filter((agent) => holds(shown, agent)), x, y, radius, colour("--resolved"));
    }

    return {
      moments, draw, rate: Math.max(4, moments / 8),
      text: (frame) => `step ${steps[frame]} of ${steps[moments - 1]}, ${Math.round(100 * shares[frame])} % held`,
    };
  }
})();
