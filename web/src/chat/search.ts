// Search in conversations: every word of the query must occur in the title, the system prompt or a message.

import type { Conversation } from "./conversation";

export function search(conversations: readonly Conversation[], query: string): Conversation[] {
  const words = query.toLowerCase().split(/\s+/u).filter(Boolean);
  if (words.length === 0) return [...conversations];
  return conversations.filter((conversation) => {
    const texts = Object.values(conversation.messages).map(({ content }) => content);
    const whole = [conversation.title, conversation.system, ...texts].join("\n").toLowerCase();
    return words.every((word) => whole.includes(word));
  });
}
