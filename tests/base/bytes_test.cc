// Values written and read back; and bytes that lie.
#include "base/bytes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace kvasir {
namespace {

struct Pair {
  std::int64_t first = 0;
  std::int64_t second = 0;
  bool operator==(const Pair&) const = default;
};
enum class Colour : std::uint16_t { kRed = 0x1234 };

static_assert(PlainValue<Pair> && PlainValue<Colour> && PlainValue<double>);
struct Padded {
  std::int64_t a;
  std::int32_t b;
};
static_assert(!PlainValue<Padded> && !PlainValue<bool> && !PlainValue<int*> && !PlainValue<std::string>);

TEST(Bytes, AreLittleEndianAndPacked) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  out.put(std::uint8_t{0xAB});
  out.put(std::uint32_t{0x01020304});
  out.put(Colour::kRed);
  out.put(true);
  out.put_string("hi");
  const std::vector<int> expected = {0xAB, 4, 3, 2, 1, 0x34, 0x12, 1, 2, 0, 0, 0, 0, 0, 0, 0, 'h', 'i'};
  ASSERT_EQ(bytes.size(), expected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), expected[i]) << i;
}

TEST(Bytes, ComeBackAsTheyWere) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  const std::vector<double> numbers = {0.5, -0.0, 1e300, std::numeric_limits<double>::denorm_min()};
  const std::vector<Pair> pairs = {{1, -2}, {std::numeric_limits<std::int64_t>::min(), 7}};
  out.put(std::int64_t{-5});
  out.put_vector(numbers);
  out.put_vector(pairs);
  out.put(false);
  out.put_string("");
  out.put_string(std::string_view("a\0b", 3));
  out.put_values(std::span<const double>(numbers));
  out.put_vector(std::vector<std::uint16_t>{});

  ByteReader in(bytes);
  std::int64_t number = 0;
  std::vector<double> read_numbers;
  std::vector<Pair> read_pairs;
  bool flag = true;
  std::string empty = "x", text;
  std::vector<double> values(numbers.size());
  std::vector<std::uint16_t> none = {1};
  EXPECT_TRUE(in.get(number) && in.get_vector(read_numbers) && in.get_vector(read_pairs, 2) && in.get(flag));
  EXPECT_TRUE(in.get_string(empty) && in.get_string(text, 3) && in.get_values(std::span<double>(values)));
  EXPECT_TRUE(in.get_vector(none));
  EXPECT_EQ(number, -5);
  EXPECT_EQ(read_numbers, numbers);
  EXPECT_TRUE(std::signbit(read_numbers[1]));
  EXPECT_EQ(read_pairs, pairs);
  EXPECT_FALSE(flag);
  EXPECT_EQ(empty, "");
  EXPECT_EQ(text, std::string("a\0b", 3));
  EXPECT_EQ(values, numbers);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(in.left(), 0u);
  EXPECT_TRUE(in.ok());
}

// Cut off anywhere, the same series of reads fails exactly where the bytes end, and stays failed.
TEST(Bytes, EndAnywhere) {
  std::vector<std::byte> bytes;
  ByteWriter out(&bytes);
  out.put(std::int32_t{7});
  out.put_vector(std::vector<std::int16_t>{1, 2, 3});
  out.put_string("end");
  const std::size_t ends[] = {4, 18, 29};
  ASSERT_EQ(bytes.size(), ends[2]);
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    ByteReader in{std::span<const std::byte>(bytes).first(size)};
    std::int32_t number = 0;
    std::vector<std::int16_t> values;
    std::string text;
    EXPECT_EQ(in.get(number), size >= ends[0]);
    EXPECT_EQ(in.get_vector(values), size >= ends[1]);
    EXPECT_EQ(in.get_string(text), size >= ends[2]);
    EXPECT_EQ(in.ok(), size == ends[2]);
    if (!in.ok()) {
      std::uint8_t byte = 0;
      EXPECT_FALSE(in.get(byte));
      EXPECT_EQ(in.left(), 0u);
    }
  }
}

TEST(Bytes, CountsAreNotBelieved) {
  for (const std::uint64_t count :
       {std::uint64_t{3}, std::uint64_t{1} << 32, std::uint64_t{1} << 61, std::numeric_limits<std::uint64_t>::max()}) {
    std::vector<std::byte> bytes;
    ByteWriter out(&bytes);
    out.put(count);
    out.put(std::uint64_t{1});
    out.put(std::uint32_t{2});  // twelve bytes behind the count
    std::vector<std::uint64_t> values;
    EXPECT_FALSE(ByteReader(bytes).get_vector(values));
    EXPECT_EQ(values.capacity(), 0u);
    std::string text;
    EXPECT_EQ(ByteReader(bytes).get_string(text), count == 3);
    EXPECT_FALSE(ByteReader(bytes).get_string(text, 2)) << "more than the most";
    std::vector<std::uint32_t> three;
    EXPECT_EQ(ByteReader(bytes).get_vector(three), count == 3);
    std::span<const std::byte> in_place;
    EXPECT_EQ(ByteReader(bytes).get_bytes(in_place, count), count == 3);
  }
}

TEST(Bytes, ABoolIsZeroOrOne) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::vector<std::byte> bytes = {static_cast<std::byte>(byte)};
    ByteReader in(bytes);
    bool flag = byte == 0;
    EXPECT_EQ(in.get(flag), byte < 2);
    EXPECT_EQ(in.ok(), byte < 2);
    if (byte < 2) {
      EXPECT_EQ(flag, byte == 1);
    }
  }
}

TEST(Bytes, ReadingNoiseStaysWithinIt) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() % 4 == 0 ? random() : 0);
    ByteReader in(bytes);
    while (in.ok() && in.left() > 0) {
      std::vector<std::uint32_t> values;
      std::string text;
      std::uint8_t byte = 0;
      const bool read = random() % 3 == 0   ? in.get_vector(values)
                        : random() % 2 == 0 ? in.get_string(text)
                                            : in.get(byte);
      EXPECT_EQ(read, in.ok());
      EXPECT_LE(values.size() * 4 + text.size(), bytes.size());
    }
  }
}

}  // namespace
}  // namespace kvasir
