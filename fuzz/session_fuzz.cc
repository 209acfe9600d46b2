// Session files whose checksums are right and whose state is anything: refused, or sound enough to go on.
//
// The first byte of an input chooses the policy of a file that Kvasir wrote; the rest takes the place of its STAT
// block. With the top bit of that byte set, a HEAD block comes first: its length in two bytes, then its bytes. With
// KVASIR_WRITE_SEEDS=FOLDER the program writes a seed for each policy and ends.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/check.h"
#include "retention/registry.h"
#include "sequence/sequence_runner.h"
#include "session/session_file.h"
#include "support/random_model.h"

namespace {

using namespace kvasir;

constexpr const char* kPolicies[] = {"full",
                                     "streaming:sinks=4,window=36",
                                     "h2o:budget=24,recent=8",
                                     "tova:budget=40,pos=compact",
                                     "cascade:size=32,n=4,sinks=4",
                                     "lethe:tau=2,start=24,sinks=2",
                                     "snapkv:budget=40,window=8+h2o:budget=24,recent=8",
                                     "cake:budget=40,window=8",
                                     "random:budget=24"};

struct World {
  std::shared_ptr<LoadedModel> model;
  std::vector<std::vector<std::byte>> files;  // one of each policy

  std::shared_ptr<KvCache> cache() const { return *new_cache(model, std::uint64_t{1} << 24); }
};

const World& world() {
  static const World made = [] {
    World w;
    const std::string path =
        (std::filesystem::temp_directory_path() / ("kvasir-session-fuzz-" + std::to_string(::getpid()))).string();
    test::RandomModelSpec spec;
    spec.d = 32;
    spec.head_dim = 8;
    spec.ffn = 48;
    spec.vocab = 300;
    test::write_bytes(path, test::make_random_model(spec));
    w.model = *load_model({.model = path, .threads = 1, .page_slots = 16}, {});
    for (const char* policy : kPolicies) {
      SequenceRunner runner(w.model, w.cache(), std::move(*make_policy(policy)));
      std::vector<TokenId> tokens(90);
      for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i * 37 % 300);
      KVASIR_CHECK(runner.feed(tokens, 32, Logits::kNone, {}).ok());
      KVASIR_CHECK(save_session(path, runner.whole(), 32, {}).ok());
      std::ifstream in(path, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(in), {}};
      w.files.emplace_back(bytes.size());
      std::memcpy(w.files.back().data(), bytes.data(), bytes.size());
    }
    std::filesystem::remove(path);
    return w;
  }();
  return made;
}

// A block from `at` on: its bytes.
std::span<const std::byte> block_at(std::span<const std::byte> file, std::size_t at) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data() + at + 8, sizeof length);
  return file.subspan(at + 16, static_cast<std::size_t>(length));
}

constexpr std::size_t kFirst = 8;  // behind the magic
constexpr std::size_t kHasHead = 0x80;

// Adds a block with the tag of the one at `at` of a file, other bytes and the right checksum.
void add_block(std::span<const std::byte> file, std::size_t at, std::span<const std::byte> content,
               std::vector<std::byte>* bytes) {
  std::vector<std::byte> block(16 + content.size());
  std::memcpy(block.data(), file.data() + at, 8);
  const std::uint64_t length = content.size();
  std::memcpy(block.data() + 8, &length, sizeof length);
  std::ranges::copy(content, block.begin() + 16);
  Hasher hasher;
  hasher.add(block);
  const Hash128 hash = hasher.digest();
  bytes->insert(bytes->end(), block.begin(), block.end());
  for (const std::uint64_t word : {hash.low, hash.high}) {
    const auto* from = reinterpret_cast<const std::byte*>(&word);
    bytes->insert(bytes->end(), from, from + sizeof word);
  }
}

void write_seeds(const char* folder) {
  for (std::size_t p = 0; p < world().files.size(); ++p) {
    const std::span<const std::byte> file = world().files[p];
    const std::span<const std::byte> state = block_at(file, kFirst + 32 + block_at(file, kFirst).size());
    std::ofstream out(std::string(folder) + "/policy-" + std::to_string(p), std::ios::binary);
    out.put(static_cast<char>(p));
    out.write(reinterpret_cast<const char*>(state.data()), static_cast<std::streamsize>(state.size()));
    const std::span<const std::byte> head = block_at(file, kFirst);
    std::ofstream both(std::string(folder) + "/head-" + std::to_string(p), std::ios::binary);
    both.put(static_cast<char>(kHasHead | p));
    both.put(static_cast<char>(head.size() & 0xff));
    both.put(static_cast<char>(head.size() >> 8));
    both.write(reinterpret_cast<const char*>(head.data()), static_cast<std::streamsize>(head.size()));
    both.write(reinterpret_cast<const char*>(state.data()), static_cast<std::streamsize>(state.size()));
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  if (const char* folder = std::getenv("KVASIR_WRITE_SEEDS")) {
    write_seeds(folder);
    std::_Exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1) return 0;
  const std::span<const std::byte> file = world().files[(data[0] & ~kHasHead) % std::size(kPolicies)];
  std::span<const std::byte> input = std::as_bytes(std::span(data, size)).subspan(1);
  std::span<const std::byte> head = block_at(file, kFirst);
  const std::size_t state = kFirst + 32 + head.size();
  const std::size_t pages = state + 32 + block_at(file, state).size();
  if ((data[0] & kHasHead) != 0) {
    if (input.size() < 2) return 0;
    const std::size_t length = std::to_integer<std::size_t>(input[0]) | std::to_integer<std::size_t>(input[1]) << 8;
    if (length > input.size() - 2) return 0;
    head = input.subspan(2, length);
    input = input.subspan(2 + length);
  }
  std::vector<std::byte> bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(kFirst));
  add_block(file, kFirst, head, &bytes);
  add_block(file, state, input, &bytes);
  bytes.insert(bytes.end(), file.begin() + static_cast<std::ptrdiff_t>(pages), file.end());
  auto loaded = parse_session(
      bytes, world().model,
      [](const SessionHead&, const RetentionPolicy&) -> Result<std::shared_ptr<KvCache>> { return world().cache(); });
  if (!loaded.ok()) return 0;
  SequenceRunner runner(std::move(loaded->sequence));
  const std::vector<TokenId> more(20, 7);
  (void)runner.feed(more, 7, Logits::kNone, {});
  return 0;
}
