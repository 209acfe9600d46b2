#include "base/part_name.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(PartName, CountsFromOneAndHasFiveDigits) {
  const auto name = parse_part_name("a/b-c-00002-of-00005.gguf");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->stem, "a/b-c");
  EXPECT_EQ(name->place, (PartPlace{2, 5}));
  EXPECT_EQ(part_path(name->stem, name->place), "a/b-c-00002-of-00005.gguf");
  EXPECT_EQ(parse_part_name("x-00001-of-00001.gguf")->place, (PartPlace{1, 1}));
  EXPECT_EQ(parse_part_name("x-99999-of-99999.gguf")->place, (PartPlace{99999, 99999}));
  for (const char* other :
       {"", "x.gguf", "x-00002-of-00005", "x-2-of-5.gguf", "x-00000-of-00005.gguf", "x-00006-of-00005.gguf",
        "x-00001-of-00002.bin", "-00002-of-00005.gguf", "a/-00002-of-00005.gguf", "x-0000a-of-00005.gguf",
        "x-00002-of-00005.gguf.1", "x_00002-of-00005.gguf", "x-000002-of-00005.gguf.gguf"})
    EXPECT_FALSE(parse_part_name(other)) << other;
}

}  // namespace
}  // namespace kvasir
