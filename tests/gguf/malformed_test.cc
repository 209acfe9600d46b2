// One test per way to be wrong: the code, and the words a user reads.
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "bytes.h"
#include "gguf/reader.h"
#include "walk.h"

namespace kvasir::gguf {
namespace {

using test::Bytes;

constexpr std::uint64_t kHuge = std::uint64_t{1} << 60;

struct Case {
  std::string name;
  Bytes bytes;
  StatusCode code;
  std::string message;  // whole, or its beginning when it ends in "..."
  bool header_only = false;
};

Bytes entry() {
  return Bytes(3, 0, 1);
}
Bytes tensors(std::uint64_t count) {
  return Bytes(3, count, 0);
}

std::vector<Case> cases() {
  constexpr auto kData = StatusCode::kDataLoss;
  constexpr auto kUnsupported = StatusCode::kUnsupported;
  const std::string retry = "; download it again";
  const std::string damaged = "; the file is damaged";
  std::vector<Case> c;

  // Header.
  c.push_back({"Empty", Bytes(), kData, "the file is empty" + retry});
  c.push_back({"PartOfMagic", Bytes().text("GGU"), kData, "the file is truncated: it has 3 bytes" + retry});
  c.push_back({"OtherMagic", Bytes().text("PK\x03\x04").fill(40, 0), kData,
               "this is not a GGUF file: it begins with 'PK\\x03\\x04' instead of 'GGUF'; convert the model to GGUF "
               "first"});
  c.push_back({"GitLfsPointer", Bytes().text("version https://git-lfs.github.com/spec/v1\noid sha256:00"), kData,
               "this is a Git LFS pointer, not the model itself; fetch the model with 'git lfs pull'"});
  c.push_back({"Version1", Bytes(1, 0, 0), kUnsupported,
               "GGUF version 1 is no longer supported; convert the model again with a current converter"});
  c.push_back({"Version0", Bytes(0, 0, 0), kUnsupported, "GGUF version 0 is unknown, ..."});
  c.push_back({"Version4", Bytes(4, 0, 0), kUnsupported,
               "GGUF version 4 is unknown, versions 2 and 3 can be read; update Kvasir or convert again"});
  c.push_back({"BigEndian", Bytes(0x03000000, 0, 0), kUnsupported,
               "this is a big-endian GGUF file (version 3); convert it to little-endian"});
  c.push_back({"HeaderCut", Bytes().text("GGUF").u32(3).u64(0).u32(0), kData,
               "the file is truncated: it ends inside its header at byte 20" + retry});
  c.push_back({"TensorCount", Bytes(3, kHuge, 0).fill(100, 0), kData,
               "the file is truncated or damaged: its header announces 1152921504606846976 tensors, but only 100 bytes "
               "follow" +
                   retry});
  c.push_back({"MetadataCount", Bytes(3, 0, kHuge).fill(100, 0), kData,
               "the file is truncated or damaged: its header announces 1152921504606846976 metadata entries, but only "
               "100 bytes follow" +
                   retry});

  // Metadata.
  c.push_back({"KeyLength", entry().u64(0xffffffffffffffff).fill(8, 'k'), kData,
               "the file is truncated or damaged: a string of the key of metadata entry 0 has 18446744073709551615 "
               "bytes, but only 8 follow" +
                   retry});
  c.push_back({"CutAfterKey", entry().string("some.key").u8(0), kData,
               "the file is truncated: it ends inside metadata 'some.key' at byte 41" + retry});
  c.push_back({"ValueType", entry().key("k", 13).u64(0), kData,
               "metadata 'k' has the value type 13, which GGUF does not define" + damaged});
  c.push_back({"CutScalar", entry().key("k", 10).u32(0), kData,
               "the file is truncated: it ends inside metadata 'k' at byte 41" + retry});
  c.push_back({"Bool", entry().key("k", 7).u8(2), kData, "metadata 'k' is a bool with the value 2" + damaged});
  c.push_back({"BoolInArray", entry().key("k", 9).array(7, 3).u8(1).u8(0).u8(255), kData,
               "metadata 'k' holds a bool with the value 255" + damaged});
  c.push_back({"StringLength", entry().key("k", 8).u64(5).text("four"), kData,
               "the file is truncated or damaged: a string of metadata 'k' has 5 bytes, but only 4 follow" + retry});
  c.push_back({"ArrayType", entry().key("k", 9).array(99, 0), kData,
               "metadata 'k' is an array of type 99, which GGUF does not define" + damaged});
  c.push_back({"ArrayCount", entry().key("k", 9).array(10, (std::uint64_t{1} << 61) + 1).u64(0), kData,
               "the file is truncated or damaged: metadata 'k' announces 2305843009213693953 array elements, but only "
               "8 bytes follow" +
                   retry});
  c.push_back({"StringCount", entry().key("k", 9).array(8, kHuge).fill(64, 0), kData,
               "the file is truncated or damaged: metadata 'k' announces 1152921504606846976 strings, ..."});
  c.push_back({"NestedCount", entry().key("k", 9).array(9, kHuge).fill(64, 0), kData,
               "the file is truncated or damaged: metadata 'k' announces 1152921504606846976 arrays, ..."});
  c.push_back({"NestedTooDeep", entry().key("k", 9).array(9, 1).array(9, 1).array(9, 1).array(9, 1).array(0, 0),
               kUnsupported, "metadata 'k' nests arrays more than 4 levels deep"});
  c.push_back({"KeyTwice", Bytes(3, 0, 3).key("k", 0).u8(1).key("l", 0).u8(1).key("k", 1).u8(1), kData,
               "metadata 'k' occurs twice; the file is damaged or badly converted"});
  c.push_back({"AlignmentType", entry().key("general.alignment", 10).u64(32), kData,
               "general.alignment must be of type u32, but is u64"});
  for (const std::uint32_t alignment : {0u, 4u, 48u, 0xffffffffu})
    c.push_back({"Alignment" + std::to_string(alignment), entry().key("general.alignment", 4).u32(alignment), kData,
                 "general.alignment is " + std::to_string(alignment) + ", but must be a power of two and at least 8"});

  // Tensors.
  c.push_back({"TensorCountAfterMetadata",
               Bytes(3, 2, 1).key("k", 8).string(std::string(40, 'x')).tensor("t", {}, 0, 0), kData,
               "the file is truncated or damaged: its header announces 2 tensors, but only 25 bytes follow" + retry});
  c.push_back(
      {"NameLength", tensors(1).u64(25).fill(24, 't'), kData,
       "the file is truncated or damaged: a string of the name of tensor 0 has 25 bytes, but only 24 follow" + retry});
  c.push_back({"CutDims", tensors(1).string("abc").u32(4).u64(1).u64(1).u8(0), kData,
               "the file is truncated: it ends inside the description of tensor 'abc' at byte 56" + retry});
  c.push_back({"CutOffset", tensors(1).string("abc").u32(1).u64(1).u32(0).u32(0).u8(0), kData,
               "the file is truncated: it ends inside the description of tensor 'abc' at byte 56" + retry});
  c.push_back({"NoDims", tensors(1).tensor("t", {}, 0, 0).fill(64, 0), kData,
               "tensor 't' has 0 dimensions, but must have 1 to 4"});
  c.push_back({"FiveDims", tensors(1).tensor("t", {1, 1, 1, 1, 1}, 0, 0).fill(64, 0), kData,
               "tensor 't' has 5 dimensions, but must have 1 to 4"});
  c.push_back(
      {"ZeroDim", tensors(1).tensor("t", {4, 0}, 0, 0).fill(64, 0), kData, "dimension 1 of tensor 't' is 0" + damaged});
  c.push_back({"ElementsOverflow", tensors(1).tensor("t", {1u << 31, 1u << 31, 4}, 0, 0).fill(64, 0), kData,
               "tensor 't' has more than 2^64 elements" + damaged});
  c.push_back({"BytesOverflow", tensors(1).tensor("t", {std::uint64_t{1} << 62}, 0, 0).fill(64, 0), kData,
               "tensor 't' has more than 2^64 bytes" + damaged});
  c.push_back({"UnknownType", tensors(1).tensor("blk.0", {32}, 77, 0).fill(64, 0), kUnsupported,
               "tensor 'blk.0' has type number 77, which is unknown or withdrawn; convert the model to F16 or Q8_0"});
  c.push_back({"WithdrawnType", tensors(1).tensor("blk.0", {32}, 4, 0).fill(64, 0), kUnsupported,
               "tensor 'blk.0' has type number 4, which is unknown or withdrawn; ..."});
  c.push_back({"RowLength", tensors(1).tensor("t", {48, 2}, 8, 0).fill(256, 0), kData,
               "tensor 't' has rows of 48 elements, but Q8_0 stores blocks of 32" + damaged});
  c.push_back({"Misaligned", tensors(1).tensor("t", {1}, 0, 16).fill(256, 0), kData,
               "tensor 't' starts at offset 16, which is no multiple of the alignment 32" + damaged});
  c.push_back({"OffsetOverflow", tensors(1).tensor("t", {1}, 0, 0xffffffffffffffe0).fill(256, 0), kData,
               "tensor 't' ends beyond 2^64 bytes" + damaged});
  c.push_back({"EndOverflow", tensors(1).tensor("t", {std::uint64_t{1} << 61}, 0, std::uint64_t{1} << 63).fill(256, 0),
               kData, "tensor 't' ends beyond 2^64 bytes" + damaged, true});
  c.push_back({"DataCut", tensors(1).tensor("t", {8}, 0, 32).pad(32).fill(63, 0), kData,
               "the file is truncated: tensor 't' ends at byte 128, but the file has 127" + retry});
  c.push_back({"Overlap", tensors(2).tensor("a", {33}, 24, 0).tensor("b", {1}, 24, 32).fill(256, 0), kData,
               "tensors 'a' and 'b' overlap" + damaged});
  c.push_back({"OverlapInHeaderOnly", tensors(2).tensor("a", {9}, 0, 64).tensor("b", {17}, 0, 0), kData,
               "tensors 'b' and 'a' overlap" + damaged, true});
  c.push_back(
      {"SamePlace", tensors(2).tensor("a", {8}, 0, 0).tensor("b", {8}, 0, 0).fill(256, 0), kData, "tensors ..."});
  c.push_back({"TensorTwice", tensors(2).tensor("a", {8}, 0, 0).tensor("a", {8}, 0, 32).fill(256, 0), kData,
               "tensor 'a' occurs twice; the file is damaged or badly converted"});

  // Names from the file in messages.
  c.push_back({"EscapedKey", entry().key("a\n\x1b[31m'\\\xc2\x9b", 13), kData,
               "metadata 'a\\x0a\\x1b[31m'\\x5c\\xc2\\x9b' has the value type 13, ..."});
  c.push_back({"LongKey", entry().key(std::string(65, 'k'), 13), kData,
               "metadata '" + std::string(64, 'k') + "...' has the value type 13, ..."});
  return c;
}

void PrintTo(const Case& wrong, std::ostream* out) {
  *out << wrong.name;
}

class Malformed : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Gguf, Malformed, testing::ValuesIn(cases()),
                         [](const auto& test_case) { return test_case.param.name; });

TEST_P(Malformed, IsToldInItsOwnWords) {
  const Case& wrong = GetParam();
  const auto bytes = wrong.bytes.exact();
  const auto file = File::parse(bytes, {.header_only = wrong.header_only});
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(status_code_name(file.status().code()), status_code_name(wrong.code));
  std::string expected = wrong.message;
  std::string actual = file.status().message();
  if (expected.ends_with("...")) {
    expected.resize(expected.size() - 3);
    actual.resize(std::min(actual.size(), expected.size()));
  }
  EXPECT_EQ(actual, expected);
  test::check_message(file.status());
}

TEST(MalformedFiles, HaveDistinctMessages) {
  // The cases above differ in names and numbers, too, so this guards only against a message used for all.
  std::vector<std::string> messages;
  for (const Case& wrong : cases()) {
    const auto bytes = wrong.bytes.exact();
    messages.push_back(File::parse(bytes, {.header_only = wrong.header_only}).status().message());
  }
  std::sort(messages.begin(), messages.end());
  EXPECT_GE(std::unique(messages.begin(), messages.end()) - messages.begin(), 45);
}

TEST(MalformedFiles, EveryPrefixOfASmallFileIsRefused) {
  Bytes b(3, 1, 3);
  b.key("a", 9).array(9, 2).array(8, 1).string("x").array(3, 2).u16(1).u16(2);
  b.key("b", 8).string("text");
  b.key("c", 12).u64(0);
  b.tensor("t", {4, 2}, 1, 0).pad(32).fill(16, 1);
  const auto whole = b.exact();
  ASSERT_TRUE(File::parse(whole).ok());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> prefix(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const auto file = File::parse(prefix);
    ASSERT_FALSE(file.ok()) << size;
    EXPECT_EQ(file.status().code(), StatusCode::kDataLoss) << size;
    EXPECT_NE(file.status().message().find("download it again"), std::string::npos) << file.status().message();
  }
}

}  // namespace
}  // namespace kvasir::gguf
