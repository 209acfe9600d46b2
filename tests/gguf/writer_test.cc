#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>

#include "bytes.h"
#include "gguf/reader.h"
#include "support/gguf_writer.h"
#include "walk.h"

namespace kvasir::gguf {
namespace {

std::vector<std::byte> filled(std::size_t size, unsigned value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

TEST(Writer, WritesTheFormatByteForByte) {
  Writer writer;
  writer.set_uint32("n", 7);
  writer.set_strings("s", {"a", ""});
  writer.add_tensor("t", 0, {2, 1}, filled(8, 0x33));
  writer.add_tensor("u", 1, {3}, filled(6, 0x44));
  test::Bytes expected(3, 2, 2);
  expected.key("n", 4).u32(7).key("s", 9).array(8, 2).string("a").string("");
  expected.tensor("t", {2, 1}, 0, 0).tensor("u", {3}, 1, 32).pad(32);
  expected.fill(8, 0x33).pad(32).fill(6, 0x44).pad(32);
  EXPECT_EQ(writer.finish(), expected.exact());
}

TEST(Writer, RoundTripsEveryType) {
  Writer writer;
  writer.set_uint8("u8", 255);
  writer.set_int8("i8", -128);
  writer.set_uint16("u16", 65535);
  writer.set_int16("i16", -32768);
  writer.set_uint32("u32", 4294967295u);
  writer.set_int32("i32", std::numeric_limits<std::int32_t>::min());
  writer.set_uint64("u64", std::numeric_limits<std::uint64_t>::max());
  writer.set_int64("i64", std::numeric_limits<std::int64_t>::min());
  writer.set_float32("f32", 0.1f);
  writer.set_float64("f64", 0.1);
  writer.set_bool("yes", true);
  writer.set_bool("no", false);
  writer.set_string("string", std::string_view("\0\xff", 2));
  writer.set_strings("strings", {"one", "", "three"});
  writer.set_int32s("ints", {-1, 0, 2147483647});
  writer.set_float32s("floats", {-0.5f, 3e38f});
  writer.set_int32s("empty", {});
  const auto bytes = writer.finish();
  const auto file = File::parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->metadata().size(), 17u);
  const auto type = [&](std::string_view key) { return value_type_name(file->find(key)->type); };
  for (const std::string_view key : {"u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "string"})
    EXPECT_EQ(type(key), key);
  EXPECT_EQ(type("yes"), "bool");
  EXPECT_EQ(type("ints"), "array");
  const auto unsigned_value = [&](std::string_view key) { return std::get<std::uint64_t>(file->find(key)->data); };
  const auto signed_value = [&](std::string_view key) { return std::get<std::int64_t>(file->find(key)->data); };
  EXPECT_EQ(unsigned_value("u8"), 255u);
  EXPECT_EQ(signed_value("i8"), -128);
  EXPECT_EQ(unsigned_value("u16"), 65535u);
  EXPECT_EQ(signed_value("i16"), -32768);
  EXPECT_EQ(unsigned_value("u32"), 4294967295u);
  EXPECT_EQ(signed_value("i32"), std::numeric_limits<std::int32_t>::min());
  EXPECT_EQ(unsigned_value("u64"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(signed_value("i64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(*file->get_float("f32"), static_cast<double>(0.1f));
  EXPECT_EQ(*file->get_float("f64"), 0.1);
  EXPECT_TRUE(*file->get_bool("yes"));
  EXPECT_FALSE(*file->get_bool("no"));
  EXPECT_EQ(*file->get_string("string"), std::string_view("\0\xff", 2));
  EXPECT_EQ(*file->get_strings("strings"), (std::vector<std::string_view>{"one", "", "three"}));
  EXPECT_EQ(*file->get_ints("ints"), (std::vector<std::int64_t>{-1, 0, 2147483647}));
  EXPECT_EQ(*file->get_floats("floats"), (std::vector<float>{-0.5f, 3e38f}));
  EXPECT_TRUE(file->get_ints("empty")->empty());
  test::walk(*file, bytes, false);
}

TEST(Writer, RoundTripsTensorsThroughAFile) {
  Writer writer;
  writer.set_string("general.architecture", "none");
  writer.add_tensor("f32", 0, {3, 5}, filled(60, 1));
  writer.add_tensor("q8_0", 8, {64, 2}, filled(136, 2));
  writer.add_tensor("bf16", 30, {1, 1, 1, 7}, filled(14, 3));
  const std::string path = testing::TempDir() + "writer_test_" + std::to_string(::getpid()) + ".gguf";
  ASSERT_TRUE(writer.write(path).ok());
  const auto file = File::open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(file->tensors().size(), 3u);
  EXPECT_EQ(file->tensor_bytes(), 60u + 136 + 14);
  const Tensor* q8 = file->find_tensor("q8_0");
  ASSERT_NE(q8, nullptr);
  EXPECT_EQ(q8->dims, (std::vector<std::uint64_t>{64, 2}));
  const auto expected = filled(136, 2);
  EXPECT_TRUE(std::equal(q8->bytes.begin(), q8->bytes.end(), expected.begin(), expected.end()));
  EXPECT_EQ(file->find_tensor("bf16")->bytes.back(), std::byte{3});
  std::filesystem::remove(path);
  EXPECT_EQ(writer.write(testing::TempDir() + "absent/x.gguf").code(), StatusCode::kNotFound);
}

TEST(WriterDeathTest, RefusesMisuse) {
  Writer writer;
  writer.set_bool("k", true);
  EXPECT_DEATH(writer.set_uint8("k", 1), "internal error");
  EXPECT_DEATH(writer.set_uint32("general.alignment", 64), "internal error");
  EXPECT_DEATH(writer.add_tensor("t", 0, {2}, filled(7, 0)), "internal error");
  EXPECT_DEATH(writer.add_tensor("t", 8, {16}, filled(17, 0)), "internal error");
}

}  // namespace
}  // namespace kvasir::gguf
