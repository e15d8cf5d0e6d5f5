// Files to try the editor with. The history of a sample is the change from `before` to `text`.

export interface Sample {
  title: string;
  file: string;
  before: string;
  text: string;
  /** The cursor is after the first occurrence of this text. */
  after: string;
}

const LOGGING = `def read(path):
    print('read', path)
    return open(path).read()


def write(path, text):
    print('write', path)
    open(path, 'w').write(text)
`;
const POINT = `class Point:
    def __init__(self, x, y):
        self.x = x
        self.y = y
`;
const IS_EVEN = `def is_even(n: int) -> bool:
    

print(is_even(4))
`;

export const SAMPLES: Record<string, Sample> = {
  logging: {
    title: "Next edit: the same change elsewhere",
    file: "files.py",
    before: LOGGING,
    text: LOGGING.replace("print('read', path)", "log.info('read %s', path)"),
    after: "log.info('read %s', path)",
  },
  point: {
    title: "Next edit: a new parameter",
    file: "point.py",
    before: POINT,
    text: POINT.replace("x, y)", "x, y, z)"),
    after: "x, y, z",
  },
  even: {
    title: "Completion: the body of a function",
    file: "even.py",
    before: IS_EVEN,
    text: IS_EVEN,
    after: "bool:\n    ",
  },
};

export function cursorOf({ text, after }: Sample): number {
  return text.indexOf(after) + after.length;
}
