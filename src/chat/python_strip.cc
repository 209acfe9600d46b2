#include "chat/python_strip.h"

#include <algorithm>
#include <array>

namespace kvasir {
namespace {

constexpr std::array<std::string_view, 29> kSpaces = {
    "\t",           "\n",           "\v",           "\f",           "\r",
    "\x1C",         "\x1D",         "\x1E",         "\x1F",         " ",
    "\xC2\x85",     "\xC2\xA0",     "\xE1\x9A\x80", "\xE2\x80\x80", "\xE2\x80\x81",
    "\xE2\x80\x82", "\xE2\x80\x83", "\xE2\x80\x84", "\xE2\x80\x85", "\xE2\x80\x86",
    "\xE2\x80\x87", "\xE2\x80\x88", "\xE2\x80\x89", "\xE2\x80\x8A", "\xE2\x80\xA8",
    "\xE2\x80\xA9", "\xE2\x80\xAF", "\xE2\x81\x9F", "\xE3\x80\x80"};

// Returns the length of the white space character for which `at_edge` holds, or 0.
template <class AtEdge>
std::size_t space_size(const AtEdge& at_edge) {
  const auto found = std::find_if(kSpaces.begin(), kSpaces.end(), at_edge);
  return found == kSpaces.end() ? 0 : found->size();
}

}  // namespace

std::string_view strip_left(std::string_view text) {
  while (const std::size_t size = space_size([&](std::string_view space) { return text.starts_with(space); }))
    text.remove_prefix(size);
  return text;
}

std::string_view strip_right(std::string_view text) {
  while (const std::size_t size = space_size([&](std::string_view space) { return text.ends_with(space); }))
    text.remove_suffix(size);
  return text;
}

std::string_view strip_left(std::string_view text, char character) {
  text.remove_prefix(std::min(text.find_first_not_of(character), text.size()));
  return text;
}

std::string_view strip_right(std::string_view text, char character) {
  text.remove_suffix(text.size() - (text.find_last_not_of(character) + 1));
  return text;
}

}  // namespace kvasir
