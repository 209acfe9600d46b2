// What it takes to move a sequence's pages to a file and back, beside computing them again.
//
//   swapping MODEL FOLDER [KV_TYPE [TOKENS ...]]
//
// Per length: bytes of the pages; the prompt's time, which is that of recomputing it in chunks; the time of writing
// and of reading the pages while passes of 20 ms go on; the longest time between two such passes; the length from which
// writing and reading is cheaper. The prompt is tokens 1, 2, 3, ... under `full`.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "requests/swap.h"
#include "retention/registry.h"
#include "runtime/loaded_model.h"
#include "sequence/sequence_runner.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPass = std::chrono::milliseconds(20);

[[noreturn]] void fail(const Status& status) {
  fmt::print(stderr, "swapping: {}\n", status.message());
  std::exit(2);
}

template <class T>
T value_or_exit(Result<T> result) {
  if (!result.ok()) fail(result.status());
  return std::move(*result);
}

double seconds_since(Clock::time_point began) {
  return std::chrono::duration<double>(Clock::now() - began).count();
}

struct Transfer {
  double seconds = 0;
  double pause = 0;
};

// Advances a swap between passes until it is in `state`. `pause`: what began it took.
Transfer advance_to(SwappedSequence& swap, SpillFile& file, SwappedSequence::State state, double pause) {
  const auto began = Clock::now();
  Transfer transfer{.pause = pause};
  while (swap.state() != state) {
    std::this_thread::sleep_for(kPass);
    const auto between = Clock::now();
    file.poll(std::chrono::milliseconds(0));
    swap.advance();
    transfer.pause = std::max(transfer.pause, seconds_since(between));
    if (swap.state() == SwappedSequence::State::kFailed) fail(swap.status());
  }
  transfer.seconds = pause + seconds_since(began);
  return transfer;
}

int run(const std::string& path, const std::string& folder, const std::string& kv_type,
        const std::vector<std::int64_t>& lengths) {
  const auto model = value_or_exit(load_model({.model = path, .kv_type = kv_type}, {}));
  const std::shared_ptr<KvCache> cache = value_or_exit(new_cache(model, std::uint64_t{8} << 30));
  const auto file =
      value_or_exit(SpillFile::create(value_or_exit(create_scratch_file(folder)), std::uint64_t{16} << 30));
  fmt::print("{}, pages of {}, {}\n", path, kv_type, file->method());
  fmt::print("{:>7} {:>10} {:>12} {:>9} {:>9} {:>9} {:>12} {:>9}\n", "tokens", "MiB", "recompute, s", "out, s", "in, s",
             "out+in, s", "recompute/io", "pause, ms");
  for (const std::int64_t length : lengths) {
    std::vector<TokenId> tokens(static_cast<std::size_t>(length));
    for (std::size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<TokenId>(1 + i % static_cast<std::size_t>(model->config.vocabulary - 1));
    auto sequence = std::make_unique<Sequence>(model, cache, value_or_exit(make_policy("full")));
    Sequence* filled = sequence.get();
    auto runner = std::make_unique<SequenceRunner>(std::move(sequence));
    const auto began = Clock::now();
    if (const Status status = runner->feed(tokens, 0, Logits::kLast, {}); !status.ok()) fail(status);
    const double recompute = seconds_since(began);

    const auto leaves = Clock::now();
    const std::unique_ptr<SwappedSequence> swap = SwappedSequence::leave(file.get(), *filled);
    if (swap == nullptr) fail({StatusCode::kResourceExhausted, "there is no room for the sequence"});
    Transfer out = advance_to(*swap, *file, SwappedSequence::State::kOut, seconds_since(leaves));
    const auto frees = Clock::now();
    runner.reset();
    out.pause = std::max(out.pause, seconds_since(frees));

    const auto comes = Clock::now();
    const std::unique_ptr<Sequence> back =
        value_or_exit(swap->arrive(model, cache, value_or_exit(make_policy("full"))));
    swap->advance();
    const Transfer in = advance_to(*swap, *file, SwappedSequence::State::kBack, seconds_since(comes));
    const double io = out.seconds + in.seconds;
    fmt::print("{:>7} {:>10.1f} {:>12.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>12.1f} {:>9.2f}\n", length,
               static_cast<double>(swap->bytes()) / (1 << 20), recompute, out.seconds, in.seconds, io, recompute / io,
               std::max(out.pause, in.pause) * 1e3);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: swapping MODEL FOLDER [KV_TYPE [TOKENS ...]]\n");
    return 2;
  }
  std::vector<std::int64_t> lengths;
  for (int i = 4; i < argc; ++i) lengths.push_back(std::atoll(argv[i]));
  if (std::ranges::any_of(lengths, [](std::int64_t length) { return length < 1 || length > 1 << 20; })) {
    fmt::print(stderr, "swapping: a length is outside 1 to 1048576\n");
    return 2;
  }
  if (lengths.empty()) lengths = {128, 512, 2048, 8192, 16384, 32768};
  return kvasir::run(argv[1], argv[2], argc > 3 ? argv[3] : "f16", lengths);
}
