// Bars over time, drawn as one SVG: a scale at the left edge, dates below, the exact figures on hover and in a table
// for those who do not see it.

const HEIGHT = 96;
const SLOT = 20;
const NUM_LABELS = 4;

export interface Series {
  name: string;
  values: number[];
}

export interface ChartProps {
  title: string;
  total: string;
  labels: string[];
  /** Stacked, first at the bottom. */
  series: Series[];
  format: (value: number) => string;
}

export function Chart({ title, total, labels, series, format }: ChartProps) {
  const sums = labels.map((_, i) => series.reduce((sum, { values }) => sum + (values[i] ?? 0), 0));
  const peak = Math.max(0, ...sums);
  return (
    <figure class="chart">
      <figcaption>
        <span>{title}</span> <strong>{total}</strong>
        {series.length > 1 && <Legend series={series} />}
      </figcaption>
      <div class="plot">
        <span class="peak mono">{peak > 0 ? format(peak) : ""}</span>
        <svg
          viewBox={`0 0 ${labels.length * SLOT} ${HEIGHT}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${title}: ${total} in all`}
        >
          {labels.map((label, i) => (
            <Column key={label} at={i} peak={peak} series={series} title={`${label}: ${format(sums[i] ?? 0)}`} />
          ))}
        </svg>
        <Dates labels={labels} />
      </div>
    </figure>
  );
}

interface ColumnProps {
  at: number;
  peak: number;
  series: Series[];
  title: string;
}

function Column({ at, peak, series, title }: ColumnProps) {
  let top = HEIGHT;
  return (
    <g>
      <title>{title}</title>
      <rect class="slot" x={at * SLOT} y={0} width={SLOT} height={HEIGHT} />
      {series.map(({ name, values }, i) => {
        const height = peak > 0 ? ((values[at] ?? 0) / peak) * (HEIGHT - 4) : 0;
        top -= height;
        return <rect key={name} class={`bar bar-${i}`} x={at * SLOT + 3} y={top} width={SLOT - 6} height={height} />;
      })}
    </g>
  );
}

function Legend({ series }: { series: Series[] }) {
  return (
    <span class="legend">
      {series.map(({ name }, i) => (
        <span key={name}>
          <span class={`swatch bar-${i}`} aria-hidden="true" /> {name}
        </span>
      ))}
    </span>
  );
}

/** A handful of labels, evenly spread. */
function Dates({ labels }: { labels: string[] }) {
  const num = Math.min(NUM_LABELS, labels.length);
  const places = Array.from({ length: num }, (_, i) => Math.round((i * (labels.length - 1)) / Math.max(1, num - 1)));
  return (
    <p class="dates mono" aria-hidden="true">
      {places.map((place) => (
        <span key={place}>{labels[place]}</span>
      ))}
    </p>
  );
}
