// Reads the canonical text of a template (template_survey.h) from left to right.
// Thread-safety: one thread. Refers to the text, which must outlive it.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// A part of a concatenation: 'a'+message.content|trim+eos_token.
struct TemplateTerm {
  bool literal = false;
  std::string text;    // of the literal, or the name
  bool strip = false;  // with |trim or .strip()
};

class CanonicalCursor {
 public:
  explicit CanonicalCursor(std::string_view text) : rest_(text) {}

  bool at_end() const { return rest_.empty(); }

  // Whether the text goes on with `pattern`; if so, moves behind it. '*' in it stands for any literal, which the next
  // of `holes` receives.
  bool take(std::string_view pattern, std::initializer_list<std::string*> holes = {});

  // Literals and names with a plus between, at least one.
  std::optional<std::vector<TemplateTerm>> take_terms();

 private:
  std::optional<std::string> take_literal();

  std::string_view rest_;
};

}  // namespace kvasir
