#include "chat/stand_in.h"

namespace kvasir {

std::optional<TokenId> find_marker(const Vocabulary& vocabulary, std::string_view piece) {
  if (piece.empty()) return std::nullopt;
  for (std::size_t i = 0; i < vocabulary.pieces.size(); ++i)
    if (vocabulary.pieces[i] == piece &&
        (vocabulary.kinds[i] == TokenKind::kControl || vocabulary.kinds[i] == TokenKind::kUserDefined))
      return static_cast<TokenId>(i);
  return std::nullopt;
}

ChatForm stand_in(const Vocabulary& vocabulary) {
  const auto has = [&](const char* piece) { return find_marker(vocabulary, piece).has_value(); };
  if (has("<|user|>") && has("<|assistant|>") && has("<|end|>"))
    // Without a marker for it, a system message is written as a user's.
    return {"markers",
            std::string("{% for message in messages %}{{ '<|' + (message.role if message.role != 'system' else '") +
                (has("<|system|>") ? "system" : "user") +
                "') + '|>' + message.content + '<|end|>' }}{% endfor %}"
                "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"};
  if (has("<|im_start|>") && has("<|im_end|>"))
    return {"chatml",
            "{% for message in messages %}"
            "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"};
  // An opened answer has no space after its label: the model's first word starts with one.
  return {"plain",
          "{% for message in messages %}{{ message.role | capitalize + ': ' + message.content + '\\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}",
          false,
          {"\nUser:", "\nSystem:"}};
}

}  // namespace kvasir
