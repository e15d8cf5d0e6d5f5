// A curve over steps, drawn as one SVG: the largest and the last value as text, the curve between them.

const WIDTH = 400;
const HEIGHT = 120;
const MARGIN = 4;

export interface LineChartProps {
  title: string;
  points: readonly { x: number; y: number }[];
  format: (value: number) => string;
}

export function LineChart({ title, points, format }: LineChartProps) {
  const last = points.at(-1);
  if (last === undefined) return null;
  const first = points[0] ?? last;
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span> <strong>{format(last.y)}</strong>
      </figcaption>
      <div class="plot">
        <svg
          viewBox={`0 0 ${WIDTH} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${title}: from ${format(first.y)} to ${format(last.y)} in ${last.x} steps`}
        >
          <path class="curve" d={pathOf(points)} vector-effect="non-scaling-stroke" />
        </svg>
        <p class="dates mono" aria-hidden="true">
          <span>step {first.x}</span>
          <span>step {last.x}</span>
        </p>
      </div>
    </figure>
  );
}

/** The curve as SVG path data, scaled to the view box. A single point is a short horizontal line. */
export function pathOf(points: readonly { x: number; y: number }[]): string {
  const xs = points.map(({ x }) => x);
  const ys = points.map(({ y }) => y);
  const place = scaler(Math.min(...xs), Math.max(...xs), 0, WIDTH);
  const rise = scaler(Math.min(0, ...ys), Math.max(...ys), HEIGHT - MARGIN, MARGIN);
  const corners = points.map(({ x, y }) => `${place(x).toFixed(1)} ${rise(y).toFixed(1)}`);
  return `M${corners.join("L")}${points.length === 1 ? "h4" : ""}`;
}

function scaler(from: number, to: number, low: number, high: number): (value: number) => number {
  const span = to - from || 1;
  return (value) => low + ((value - from) / span) * (high - low);
}
