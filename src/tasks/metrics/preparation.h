// Steps that a task applies to a prediction before its metric, by name.
// Thread-safety: pure functions; all steps are static.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

struct Preparation {
  std::string_view name;
  std::string_view source;                   // the original: repository and function
  std::string (*prepare)(std::string_view);  // REQUIRES: valid UTF-8

  // Invalid UTF-8 counts as U+FFFD, as for metrics.
  std::string apply(std::string_view prediction) const;
};

// Returns null if there is no step of that name.
const Preparation* find_preparation(std::string_view name);

std::vector<std::string_view> preparation_names();

}  // namespace kvasir
