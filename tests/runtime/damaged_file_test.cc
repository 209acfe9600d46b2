// The small model, damaged: an error or a model that runs; never a crash, a hang or memory without bound.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <random>

#include "kvasir/engine.h"
#include "support/engine_fixture.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::vector<std::byte> model_bytes() {
  std::ifstream file(small_model(), std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

// True if three tokens came out.
bool runs(const std::string& path) {
  EngineOptions options;
  options.model = path;
  options.threads = 1;
  auto engine = Engine::open(options);
  const auto failed = [](const Status& status) {
    EXPECT_FALSE(status.message().empty());
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    return false;
  };
  if (!engine.ok()) return failed(engine.status());
  auto session = (*engine)->new_session({});
  if (!session.ok()) return failed(session.status());
  const Status read = (*session)->read("Once upon a time");
  if (!read.ok()) return failed(read);
  GenerateOptions generate;
  generate.max_tokens = 3;
  const auto result = (*session)->generate(generate, {});
  return result.ok() || failed(result.status());
}

TEST(DamagedFile, CutAnywhere) {
  const std::vector<std::byte> whole = model_bytes();
  ASSERT_GT(whole.size(), 1000000u);
  for (std::size_t part = 0; part < 64; ++part) {
    const std::vector<std::byte> cut(whole.begin(),
                                     whole.begin() + static_cast<std::ptrdiff_t>(whole.size() * part / 64));
    EXPECT_FALSE(runs(TemporaryFile(cut).path())) << part << "/64";
  }
  EXPECT_TRUE(runs(TemporaryFile(whole).path()));
}

TEST(DamagedFile, HeaderCorruptedAtRandom) {
  const std::vector<std::byte> whole = model_bytes();
  const std::string path = TemporaryFile({}).path();
  write_bytes(path, whole);
  std::mt19937_64 random(20);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    // Mostly among the first keys, where the numbers are; else anywhere in vocabulary and tensor table.
    const std::size_t range = round % 2 == 0 ? 1500 : 200000;
    std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
    std::vector<std::size_t> places;
    for (std::size_t n = 1 + random() % 4; n > 0; --n) {
      places.push_back(random() % range);
      const std::uint8_t interesting[] = {0, 1, 0x7f, 0x80, 0xff, static_cast<std::uint8_t>(random())};
      file.seekp(static_cast<std::streamoff>(places.back()));
      file.put(static_cast<char>(interesting[random() % std::size(interesting)]));
    }
    file.close();
    if (!runs(path)) ++refused;
    file.open(path, std::ios::binary | std::ios::in | std::ios::out);
    for (const std::size_t place : places) {
      file.seekp(static_cast<std::streamoff>(place));
      file.put(static_cast<char>(whole[place]));
    }
  }
  EXPECT_TRUE(runs(path)) << "the damage was not undone";
  std::filesystem::remove(path);
  EXPECT_GT(refused, 200);
  EXPECT_LT(refused, 950);
}

}  // namespace
}  // namespace kvasir::test
