#include "text/utf8.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <string_view>

namespace kvasir {
namespace {

TEST(Utf8, WhiteSpaceAtTheStart) {
  EXPECT_EQ(white_space_prefix(""), 0U);
  EXPECT_EQ(white_space_prefix("a "), 0U);
  EXPECT_EQ(white_space_prefix(" \t\n\v\f\r\u0085\u2029\u3000a"), 14U);
  EXPECT_EQ(white_space_prefix(" \u200B"), 1U);
}

TEST(Utf8, ValidatesAsTheUnitsDo) {
  std::mt19937 random(3);
  const unsigned char bytes[] = {0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2,
                                 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF};
  int valid = 0;
  for (int i = 0; i < 100000; ++i) {
    std::string text;
    for (auto n = 1 + random() % 4; n > 0; --n) text += static_cast<char>(bytes[random() % std::size(bytes)]);
    std::string_view rest = text;
    while (!rest.empty()) {
      const Utf8Unit unit = first_utf8_unit(rest);
      if (unit.kind != Utf8Unit::Kind::kComplete) break;
      rest.remove_prefix(unit.length);
    }
    const auto invalid = find_invalid_utf8(text);
    ASSERT_EQ(rest.empty(), !invalid);
    if (invalid) {
      ASSERT_EQ(*invalid, text.size() - rest.size());
    } else {
      ++valid;
    }
  }
  EXPECT_GT(valid, 1000);
}

}  // namespace
}  // namespace kvasir
