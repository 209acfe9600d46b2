// A text coloured token by token, and the choice of the layer whose values colour it.

// A token as it can be seen: line ends get a mark before they break the line, other control characters their picture,
// and those that would turn the direction of all that follows, their number.
function visibleText(text) {
  const mark = (symbol) => element('span', { class: 'mark', 'aria-hidden': 'true' }, symbol);
  if (text === '') return [mark('∅')];
  return text.split(/([\u0000-\u001f\u007f\u202a-\u202e\u2066-\u2069])/).filter((part) => part !== '').flatMap((part) => {
    const code = part.codePointAt(0);
    if (part === '\n') return [mark('↵'), '\n'];
    if (part === '\t') return [mark('⇥'), '\t'];
    if (code < 0x20) return [mark(String.fromCodePoint(0x2400 + code))];
    if (code >= 0x202a && code <= 0x2069 && part.length === 1) return [mark(`U+${code.toString(16).toUpperCase()}`)];
    return code === 0x7f ? [mark('␡')] : [part];
  });
}
const quoted = (text) => `“${text.replace(/\n/g, '↵').replace(/\t/g, '⇥')}”`;

// Which layer is shown: a list to jump, a slider to sweep.
function layerChoice(block, choose) {
  const names = block.layers.map(({ name }, i) => name || String(i));
  const [list, slider] = [freshId('layer'), freshId('slider')];
  const select = element('select', { id: list, onchange: () => set(Number(select.value)) },
    ...names.map((name, i) => element('option', { value: i }, name)));
  const sweep = element('input', {
    id: slider, type: 'range', min: 0, max: names.length - 1, step: 1, value: 0, 'aria-label': block.layer_label || 'Layer',
    oninput: () => set(Number(sweep.value)),
  });
  function set(i) {
    select.value = i;
    sweep.value = i;
    sweep.setAttribute('aria-valuetext', names[i]);
    choose(i);
  }
  return element('div', { class: 'layer-choice' }, element('label', { for: list }, block.layer_label || 'Layer'), select, sweep);
}

function tokenText(block) {
  const layers = block.layers.map(({ values }) => decodeFloats(values));
  let chosen = 0;
  let current = -1;
  const spans = block.tokens.map((text) => element('span', { class: 'token' }, ...visibleText(text)));
  const scale = element('div', { class: 'token-scale' });
  const spoken = element('span', { class: 'spoken', 'aria-live': 'polite' });
  const valueOf = (i) => (Number.isNaN(layers[chosen][i]) ? block.missing_label : formatNumber(layers[chosen][i], 3));

  const paint = () => {
    const { ramp } = theme();
    layers[chosen].forEach((value, i) => {
      const missing = Number.isNaN(value);
      const colour = missing ? null : rampColour(ramp, value);
      spans[i].style.backgroundColor = missing ? '' : `rgb(${colour.join(',')})`;
      spans[i].style.color = missing ? '' : inkOn(colour);
      spans[i].classList.toggle('missing', missing);
    });
    const kept = layers[chosen].reduce((sum, value) => sum + (Number.isNaN(value) ? 0 : 1), 0);
    const missing = kept === spans.length ? null
      : element('span', { class: 'scale-missing' }, element('span', { class: 'token missing' }, 'token'),
        `${block.missing_label}: ${formatNumber(spans.length - kept)} of ${formatNumber(spans.length)}`);
    scale.replaceChildren(
      scaleBar(block.value_label, ramp, [{ at: 0, text: block.low_label }, { at: 1, text: block.high_label }], missing));
  };

  const leave = () => {
    if (current >= 0) spans[current].classList.remove('current');
    current = -1;
    hideTooltip();
  };
  const visit = (i) => {
    if (current >= 0) spans[current].classList.remove('current');
    current = i;
    spans[i].classList.add('current');
    const name = block.value_label || 'value';
    const rows = [{ name, value: valueOf(i) }];
    const more = block.tooltips[i];
    showTooltipAtElement(`${formatNumber(i)}  ${quoted(block.tokens[i])}${more ? `\n${more}` : ''}`, rows, spans[i]);
    spoken.textContent = `${quoted(block.tokens[i])}, ${name} ${valueOf(i)}${more ? `, ${more}` : ''}`;
  };
  const indices = new Map(spans.map((span, i) => [span, i]));
  const hovered = ({ target }) => {
    const i = indices.get(target.closest('.token'));
    if (i === undefined) leave();
    else if (i !== current) visit(i);
  };
  const keyed = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === 'Escape') leave();
    if (!step || !spans.length) return;
    event.preventDefault();
    const next = clamp(current + step, 0, spans.length - 1);
    spans[next].scrollIntoView({ block: 'nearest' });
    visit(next);
  };
  const text = element('div', {
    class: 'token-text', dir: 'auto', tabindex: '0', role: 'group', onpointerover: hovered, onpointerleave: leave, onkeydown: keyed,
    onblur: leave, 'aria-label': `${block.title || 'Coloured text'}: ${spans.length} tokens; arrow keys go from token to token`,
  }, ...spans);
  const choice = layers.length > 1 ? layerChoice(block, (i) => { chosen = i; leave(); paint(); }) : null;
  paint();
  const data = {
    header: ['position', 'token', ...block.layers.map(({ name }, i) => name || `layer ${i}`), ...(block.tooltips.length ? ['about'] : [])],
    rows: () => block.tokens.map((token, i) => [i, quoted(token),
      ...layers.map((values) => Number(values[i].toPrecision(5))), ...(block.tooltips.length ? [block.tooltips[i]] : [])]),
  };
  return { figure: figureElement('tokens', block, data, choice, scale, text, spoken), repaint: paint };
}
