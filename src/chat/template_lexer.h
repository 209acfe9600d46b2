// Splits a Jinja template into tags and texts, as lists of tokens. Trims white space around tags (trim_blocks and
// lstrip_blocks, as usual for chat templates) and drops comments.
// Thread-safety: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

struct TemplateToken {
  enum class Kind {
    kWord,  // a name together with its attributes: message.role
    kNumber,
    kLiteral,  // a string, without quotes and escapes
    kSign,
    kCode,  // the canonical text of several tokens
  };
  Kind kind;
  std::string text;

  bool is_sign(std::string_view sign) const { return kind == Kind::kSign && text == sign; }
};

using TemplateTokens = std::vector<TemplateToken>;

// A statement {%...%}, or an output {{...}}. Text between tags is an output of one literal.
struct TemplateItem {
  bool statement;
  TemplateTokens tokens;
};

// Splits a template into items, in order. Returns false if the source is not Jinja.
bool lex_template(std::string_view source, std::vector<TemplateItem>* items);

// Returns tokens as canonical text: spaces between words only, literals in single quotes.
std::string text_of(const TemplateTokens& tokens);

}  // namespace kvasir
