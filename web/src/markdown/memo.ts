// A component that renders again only when `isSame` says its props differ.

import { Component, h, type ComponentChildren, type ComponentType, type FunctionComponent } from "preact";

export function memo<P extends object>(
  render: (props: P) => ComponentChildren,
  isSame: (before: P, now: P) => boolean,
): ComponentType<P> {
  const Inner = render as FunctionComponent<P>;
  return class Memo extends Component<P> {
    override shouldComponentUpdate(next: Readonly<P>): boolean {
      return !isSame(this.props as P, next as P);
    }
    override render(): ComponentChildren {
      return h(Inner, this.props as P);
    }
  };
}
