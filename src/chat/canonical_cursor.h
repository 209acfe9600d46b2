// Reads the canonical text of a template (template_survey.h) from left to right.
// Thread-safety: one thread. Refers to the text, which must outlive it.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// One term of a concatenation such as 'a'+message.content|trim+eos_token.
struct TemplateTerm {
  bool literal = false;
  std::string text;    // the literal's text, or the name
  bool strip = false;  // |trim or .strip() is applied to it
};

class CanonicalCursor {
 public:
  explicit CanonicalCursor(std::string_view text) : rest_(text) {}

  bool at_end() const { return rest_.empty(); }

  // If the text continues with `pattern`, moves past it and returns true. Each '*' in the pattern matches any literal
  // and stores its text in the next of `holes`.
  bool take(std::string_view pattern, std::initializer_list<std::string*> holes = {});

  // Takes one or more literals and names joined by plus signs; nullopt, without moving, if there are none.
  std::optional<std::vector<TemplateTerm>> take_terms();

 private:
  std::optional<std::string> take_literal();

  std::string_view rest_;
};

}  // namespace kvasir
