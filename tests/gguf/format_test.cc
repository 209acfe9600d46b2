// Files written by hand from the published format.
#include <gtest/gtest.h>

#include <limits>

#include "bytes.h"
#include "gguf/reader.h"
#include "walk.h"

namespace kvasir::gguf {
namespace {

using test::Bytes;

// One entry of each type, and nested arrays.
Bytes every_type(std::uint32_t version) {
  Bytes b(version, 0, 15);
  b.key("a.u8", 0).u8(250);
  b.key("a.i8", 1).u8(0x80);
  b.key("a.u16", 2).u16(65000);
  b.key("a.i16", 3).u16(0xfffe);
  b.key("a.u32", 4).u32(4'000'000'000);
  b.key("a.i32", 5).u32(0xffffffff);
  b.key("a.f32", 6).u32(0x3fc00000);  // 1.5
  b.key("a.bool", 7).u8(1);
  b.key("a.string", 8).string(std::string_view("a\0\xff\n", 4));
  b.key("a.u64", 10).u64(0xffffffffffffffff);
  b.key("a.i64", 11).u64(0x8000000000000000);
  b.key("a.f64", 12).u64(0xc004000000000000);  // -2.5
  b.key("b.u16s", 9).array(2, 3).u16(1).u16(2).u16(65535);
  b.key("b.strings", 9).array(8, 2).string("").string("xyz");
  b.key("b.nested", 9).array(9, 2);
  b.array(9, 1).array(9, 1).array(7, 2).u8(0).u8(1);  // 4 levels deep
  b.array(8, 1).string("deep");
  return b;
}

class Versions : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(Format, Versions, testing::Values(2, 3));

TEST_P(Versions, ReadsEveryType) {
  const auto bytes = every_type(GetParam()).exact();
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->version(), GetParam());
  EXPECT_EQ(file->alignment(), 32u);
  EXPECT_EQ(file->size_bytes(), bytes.size());
  EXPECT_EQ(file->tensor_bytes(), 0u);
  ASSERT_EQ(file->metadata().size(), 15u);
  EXPECT_EQ(file->metadata()[0].key, "a.u8");
  EXPECT_EQ(file->metadata()[14].key, "b.nested");

  EXPECT_EQ(*file->get_uint("a.u8"), 250u);
  EXPECT_EQ(std::get<std::int64_t>(file->find("a.i8")->data), -128);
  EXPECT_EQ(*file->get_uint("a.u16"), 65000u);
  EXPECT_EQ(std::get<std::int64_t>(file->find("a.i16")->data), -2);
  EXPECT_EQ(*file->get_uint("a.u32"), 4'000'000'000u);
  EXPECT_EQ(std::get<std::int64_t>(file->find("a.i32")->data), -1);
  EXPECT_EQ(*file->get_float("a.f32"), 1.5);
  EXPECT_TRUE(*file->get_bool("a.bool"));
  EXPECT_EQ(*file->get_string("a.string"), std::string_view("a\0\xff\n", 4));
  EXPECT_EQ(*file->get_uint("a.u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(std::get<std::int64_t>(file->find("a.i64")->data), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(*file->get_float("a.f64"), -2.5);
  EXPECT_EQ(*file->get_ints("b.u16s"), (std::vector<std::int64_t>{1, 2, 65535}));
  EXPECT_EQ(*file->get_strings("b.strings"), (std::vector<std::string_view>{"", "xyz"}));

  const auto& nested = std::get<Array>(file->find("b.nested")->data);
  ASSERT_EQ(nested.arrays.size(), 2u);
  const Array& deepest = nested.arrays[0].arrays[0].arrays[0];
  EXPECT_EQ(deepest.type, ValueType::kBool);
  EXPECT_EQ(deepest.raw[0], std::byte{0});
  EXPECT_EQ(deepest.raw[1], std::byte{1});
  EXPECT_EQ(nested.arrays[1].strings, std::vector<std::string_view>{"deep"});
  test::walk(*file, bytes, false);
}

TEST_P(Versions, ReadsTensors) {
  Bytes b(GetParam(), 3, 0);
  // Out of order in the data section, and with a gap, as the format allows.
  b.tensor("two", {32, 2, 1, 1}, 8, 64).tensor("one", {3}, 0, 0).tensor("four", {256}, 12, 192);
  b.pad(32);
  const std::size_t start = b.size();
  b.fill(12, 0x11).pad(32).fill(32, 0).fill(68, 0x22).pad(32).fill(32, 0).fill(144, 0x44);
  const auto bytes = b.exact();
  ASSERT_EQ(bytes.size(), start + 192 + 144);
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensor_bytes(), 12u + 68 + 144);
  const Tensor& two = file->tensors()[0];
  EXPECT_EQ(two.name, "two");
  EXPECT_EQ(two.type, 8u);
  EXPECT_EQ(two.dims, (std::vector<std::uint64_t>{32, 2, 1, 1}));
  EXPECT_EQ(two.elements, 64u);
  EXPECT_EQ(two.offset, start + 64);
  ASSERT_EQ(two.bytes.size(), 68u);
  EXPECT_EQ(two.bytes.front(), std::byte{0x22});
  EXPECT_EQ(two.bytes.back(), std::byte{0x22});
  EXPECT_EQ(file->find_tensor("one")->bytes.size(), 12u);
  EXPECT_EQ(file->find_tensor("one")->bytes.back(), std::byte{0x11});
  EXPECT_EQ(file->find_tensor("four")->bytes.size(), 144u);  // a type that can only be described
  EXPECT_EQ(file->find_tensor("five"), nullptr);
  test::walk(*file, bytes, false);
}

TEST(Format, HonoursAlignment) {
  Bytes b(3, 1, 1);
  b.key("general.alignment", 4).u32(256);
  b.tensor("t", {1}, 24, 256);
  b.pad(256);
  const std::size_t start = b.size();
  b.fill(256, 0).u8(0x77);
  const auto bytes = b.exact();
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->alignment(), 256u);
  EXPECT_EQ(file->tensors()[0].offset, start + 256);
  EXPECT_EQ(file->tensors()[0].bytes[0], std::byte{0x77});
}

TEST(Format, EmptyFileAndEmptyArraysAreFine) {
  const auto nothing = Bytes(3, 0, 0).exact();
  EXPECT_TRUE(File::parse(nothing).ok());

  Bytes b(3, 0, 3);
  b.key("s", 9).array(8, 0);
  b.key("i", 9).array(5, 0);
  b.key("a", 9).array(9, 0);
  const auto bytes = b.exact();
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_TRUE(file->get_strings("s")->empty());
  EXPECT_TRUE(file->get_ints("i")->empty());
  test::walk(*file, bytes, false);
}

TEST(Format, HeaderOnlyNeedsNoData) {
  Bytes b(3, 2, 1);
  b.key("k", 0).u8(1);
  b.tensor("a", {32}, 0, 0).tensor("b", {1u << 20, 1u << 20}, 1, 128);
  const auto bytes = b.exact();
  EXPECT_FALSE(File::parse(bytes).ok());
  const auto file = File::parse(bytes, {.header_only = true});
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->tensor_bytes(), 128u + (std::uint64_t{2} << 40));
  EXPECT_TRUE(file->tensors()[0].bytes.empty());
  EXPECT_EQ(file->tensors()[1].elements, std::uint64_t{1} << 40);
  test::walk(*file, bytes, true);
}

TEST(Lookup, AcceptsIntegersThatFit) {
  Bytes b(3, 0, 6);
  b.key("i8", 1).u8(7);
  b.key("minus", 5).u32(0xffffffff);
  b.key("u64", 10).u64(1u << 31);
  b.key("bools", 9).array(7, 2).u8(1).u8(0);
  b.key("i8s", 9).array(1, 2).u8(0xff).u8(1);
  b.key("huge", 9).array(10, 2).u64(1).u64(0x8000000000000000);
  const auto bytes = b.exact();
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(*file->get_uint("i8"), 7u);
  EXPECT_EQ(*file->get_float("i8"), 7.0);
  EXPECT_EQ(*file->get_float("minus"), -1.0);
  EXPECT_EQ(*file->get_uint("u64"), 1u << 31);
  EXPECT_EQ(*file->get_ints("bools"), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(*file->get_ints("i8s"), (std::vector<std::int64_t>{-1, 1}));
  EXPECT_EQ(file->get_uint("minus").status().message(), "metadata 'minus' is -1, but must not be negative");
  EXPECT_EQ(file->get_ints("huge").status().message(), "element 1 of metadata 'huge' is too large for 63 bits");
}

TEST(Lookup, NamesTheKeyInErrors) {
  Bytes b(3, 0, 7);
  b.key("bool", 7).u8(1);
  b.key("text", 8).string("x");
  b.key("nan", 6).u32(0x7fc00000);
  b.key("f32s", 9).array(6, 2).u32(0x3f800000).u32(0x7f800000);
  b.key("f64s", 9).array(12, 1).u64(0x7fe0000000000000);  // finite, but beyond a float
  b.key("strings", 9).array(8, 1).string("s");
  b.key("good", 9).array(12, 1).u64(0x3fe0000000000000);
  const auto bytes = b.exact();
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto message = [](const auto& result) {
    EXPECT_EQ(result.status().code(), StatusCode::kDataLoss);
    return result.status().message();
  };
  EXPECT_EQ(message(file->get_uint("bool")), "metadata 'bool' is of type bool, not an integer");
  EXPECT_EQ(message(file->get_float("text")), "metadata 'text' is of type string, not a number");
  EXPECT_EQ(message(file->get_float("nan")), "metadata 'nan' is nan, not a finite number");
  EXPECT_EQ(message(file->get_floats("f32s")), "element 1 of metadata 'f32s' is inf, not a finite float");
  EXPECT_NE(message(file->get_floats("f64s")).find("not a finite float"), std::string::npos);
  EXPECT_EQ(message(file->get_bool("text")), "metadata 'text' is of type string, not a bool");
  EXPECT_EQ(message(file->get_string("strings")), "metadata 'strings' is an array of string, not a string");
  EXPECT_EQ(message(file->get_strings("f32s")), "metadata 'f32s' is an array of f32, not an array of strings");
  EXPECT_EQ(message(file->get_ints("f32s")), "metadata 'f32s' is an array of f32, not an array of integers");
  EXPECT_EQ(message(file->get_floats("strings")), "metadata 'strings' is an array of string, not an array of floats");
  EXPECT_EQ(*file->get_floats("good"), std::vector<float>{0.5f});
}

TEST(Lookup, AbsentKeyIsNotFound) {
  const auto bytes = Bytes(3, 0, 0).exact();
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(file->find("k"), nullptr);
  const auto expect = [](const auto& result) {
    EXPECT_EQ(result.status().code(), StatusCode::kNotFound);
    EXPECT_EQ(result.status().message(), "metadata 'k' is missing from the file");
  };
  expect(file->get_uint("k"));
  expect(file->get_float("k"));
  expect(file->get_bool("k"));
  expect(file->get_string("k"));
  expect(file->get_strings("k"));
  expect(file->get_ints("k"));
  expect(file->get_floats("k"));
}

}  // namespace
}  // namespace kvasir::gguf
