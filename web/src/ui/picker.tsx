// A labelled list of choices: ids and what each means.

interface PickerProps {
  label: string;
  value: string;
  options: Record<string, string>;
  onPick: (value: string) => void;
}

export function Picker({ label, value, options, onPick }: PickerProps) {
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => onPick(event.currentTarget.value)}>
        {Object.entries(options).map(([id, meaning]) => (
          <option key={id} value={id}>
            {meaning}
          </option>
        ))}
      </select>
    </label>
  );
}
