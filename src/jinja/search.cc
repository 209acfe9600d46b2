#include "jinja/search.h"

#include <cstring>

namespace kvasir::jinja {

std::size_t find_part(Heap& heap, std::string_view text, std::string_view part, std::size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const std::string_view rest = text.substr(from);
  if (part.empty()) return from;
  // std::string::find takes the product of both lengths.
  const void* found = memmem(rest.data(), rest.size(), part.data(), part.size());
  const std::size_t at = found == nullptr ? rest.size() : static_cast<const char*>(found) - rest.data();
  heap.step((at + part.size()) / 16);
  return found == nullptr ? std::string_view::npos : from + at;
}

}  // namespace kvasir::jinja
