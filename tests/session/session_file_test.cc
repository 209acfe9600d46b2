// Session files: restored exactly, or refused with one line; the old file is never lost.
#include "session/session_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>

#include "base/mapped_file.h"
#include "kv/table.h"
#include "sequence/policy_cases.h"
#include "support/families.h"
#include "support/file_size_limit.h"

namespace kvasir::test {
namespace {

RandomModelSpec file_spec() {
  RandomModelSpec spec = small_spec();
  spec.context = 100;  // pos=auto has switched
  return spec;
}

std::vector<std::string> policies() {
  std::vector<std::string> all = {"full", "window:size=40", "streaming:sinks=4,window=36",
                                  "streaming:sinks=4,window=44,every=16,realign=rotate"};
  for (const PolicyCases& cases : all_policy_cases())
    all.insert(all.end(), cases.evicting.begin(), cases.evicting.end());
  return all;
}

class SessionFile : public ::testing::Test {
 protected:
  SessionFile() : file_(make_random_model(file_spec())), model_(load(file_.path(), {.threads = 1, .page_slots = 16})) {
    folder_ = std::filesystem::temp_directory_path() / ("kvasir-session-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~SessionFile() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "session") const { return (folder_ / name).string(); }
  std::unique_ptr<SequenceRunner> runner(const std::string& policy, int generated = 21) {
    auto made = new_runner(model_, policy);
    run_text(*made, Text(130, generated, 5), 32);
    return made;
  }
  SessionExtras extras() const {
    SessionExtras extras;
    extras.newest = random_tokens(50, file_spec().vocab, 3);
    extras.logits.assign(static_cast<std::size_t>(file_spec().vocab), 0.25F);
    extras.chat.messages = {{"user", "a question"}, {"assistant", "an answer"}};
    extras.chat.started = true;
    extras.chat.ending = {ChatEnding::Kind::kStop, kNoToken, "</s>"};
    extras.sampler.emplace();
    extras.sampler->random = {1, 2, 3, 4};
    extras.sampler->recent = {5, 6, 7};
    return extras;
  }
  SessionCacheMaker cache_maker() const {
    return [this](const SessionHead&, const RetentionPolicy&) { return new_cache(model_, std::uint64_t{1} << 26); };
  }
  std::vector<std::byte> bytes_of(const std::string& name = "session") const {
    auto mapped = MappedFile::open(path(name));
    EXPECT_TRUE(mapped.ok());
    return {mapped->bytes().begin(), mapped->bytes().end()};
  }

  TemporaryFile file_;
  std::shared_ptr<LoadedModel> model_;
  std::filesystem::path folder_;
};

std::vector<std::vector<TokenIndex>> kept_in(const KvSequence& sequence) {
  std::vector<std::vector<TokenIndex>> kept;
  for (int t = 0; t < sequence.tables(); ++t) kept.push_back(retained_ids(sequence.table(t)));
  return kept;
}

TEST_F(SessionFile, ContinuesEveryPolicyWithTheBitsOfNoStop) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    const auto saved = runner(policy);
    if (policy != "full") {
      EXPECT_TRUE(saved->counters().first_dropped.has_value()) << "nothing was dropped before";
    }
    ASSERT_TRUE(save_session(path(), saved->whole(), 32, extras()).ok());
    auto loaded = load_session(path(), model_, cache_maker());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_FALSE(loaded->other_arithmetic);
    EXPECT_EQ(loaded->head.policy, saved->policy().traits().spec);
    EXPECT_EQ(loaded->head.chunk, 32);
    EXPECT_EQ(loaded->extras.newest, extras().newest);
    EXPECT_EQ(loaded->extras.logits, extras().logits);
    EXPECT_EQ(loaded->extras.chat.messages.size(), 2u);
    EXPECT_EQ(loaded->extras.chat.ending.stop, "</s>");
    EXPECT_EQ(loaded->extras.sampler->recent, extras().sampler->recent);
    SequenceRunner again(std::move(loaded->sequence));
    EXPECT_EQ(kept_in(again.sequence()), kept_in(saved->sequence()));
    EXPECT_EQ(again.counters().kept_max, saved->counters().kept_max);
    EXPECT_EQ(again.counters().first_dropped, saved->counters().first_dropped);
    const Text more(50, 40, 7);
    const std::int64_t before = saved->sequence().only_table().length();
    EXPECT_TRUE(same_bits(run_text(again, more, 32), run_text(*saved, more, 32)));
    EXPECT_EQ(kept_in(again.sequence()), kept_in(saved->sequence()));
    EXPECT_NE(saved->sequence().next_index(), before);
  }
}

// The options of sampling come back, and a file without the newer ones is byte for byte what older versions wrote.
TEST_F(SessionFile, KeepsOptionsOfSampling) {
  const auto saved = runner("full");
  SessionExtras plain = extras();
  ASSERT_TRUE(save_session(path(), saved->whole(), 32, plain).ok());
  const std::size_t size = bytes_of().size();
  SamplingOptions& options = plain.sampler->options;
  options.logit_bias = {{3, 2}};
  ASSERT_TRUE(save_session(path("bias"), saved->whole(), 32, plain).ok());
  EXPECT_EQ(bytes_of("bias").size(), size + 8 + 8);
  for (const bool biased : {true, false}) {
    if (!biased) options.logit_bias.clear();
    options.top_n_sigma = 1.5F, options.typical_p = 0.9F, options.xtc_probability = 0.25F;
    options.xtc_threshold = 0.2F, options.dynatemp_range = 0.5F, options.dynatemp_exponent = 2;
    ASSERT_TRUE(save_session(path("all"), saved->whole(), 32, plain).ok());
    EXPECT_EQ(bytes_of("all").size(), size + 8 + (biased ? 8 : 0) + 6 * sizeof(float));
    auto loaded = load_session(path("all"), model_, cache_maker());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    const SamplingOptions& got = loaded->extras.sampler->options;
    EXPECT_EQ(got.logit_bias, options.logit_bias);
    EXPECT_EQ(got.top_n_sigma, 1.5F);
    EXPECT_EQ(got.typical_p, 0.9F);
    EXPECT_EQ(got.xtc_probability, 0.25F);
    EXPECT_EQ(got.xtc_threshold, 0.2F);
    EXPECT_EQ(got.dynatemp_range, 0.5F);
    EXPECT_EQ(got.dynatemp_exponent, 2.0F);
  }
  auto old = load_session(path(), model_, cache_maker());
  ASSERT_TRUE(old.ok());
  EXPECT_EQ(old->extras.sampler->options.typical_p, 1.0F);
  EXPECT_EQ(old->extras.sampler->options.xtc_threshold, 0.1F);
}

TEST_F(SessionFile, ContinuesEveryFamilyAndPageType) {
  for (const FamilyCase& family : family_cases(file_spec()))
    for (const char* type : {"f32", "bf16", "q4", "k=q8,v=q2,recent=20"}) {
      SCOPED_TRACE(family.name + " " + type);
      const TemporaryFile file(make_random_model(family.spec));
      const auto model = load(file.path(), {.threads = 1, .kv_type = type, .page_slots = 32});
      const auto saved = new_runner(model, "h2o:budget=24,recent=8");
      run_text(*saved, Text(70, 9, 5), 32);
      ASSERT_TRUE(save_session(path(), saved->whole(), 0, {}).ok());
      auto loaded = load_session(path(), model, [&](const SessionHead& head, const RetentionPolicy&) {
        EXPECT_EQ(head.kv_type, type);
        EXPECT_EQ(head.page_slots, 32);
        return new_cache(model, std::uint64_t{1} << 26);
      });
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      SequenceRunner again(std::move(loaded->sequence));
      const Text more(20, 20, 7);
      EXPECT_TRUE(same_bits(run_text(again, more, 32), run_text(*saved, more, 32)));
    }
}

// Cut at each 1/64 of its length, and at each of its first and last bytes.
TEST_F(SessionFile, CutFilesAreRefused) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    const auto saved = runner(policy);
    ASSERT_TRUE(save_session(path(), saved->whole(), 32, extras()).ok());
    const std::vector<std::byte> whole = bytes_of();
    std::vector<std::size_t> cuts;
    for (std::size_t i = 0; i < 64; ++i) cuts.push_back(whole.size() * i / 64);
    for (std::size_t i = 1; i <= 40; ++i) cuts.push_back(whole.size() - i);
    for (const std::size_t cut : cuts) {
      const auto loaded = parse_session(std::span(whole).first(cut), model_, cache_maker());
      ASSERT_FALSE(loaded.ok()) << cut;
      EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss);
      EXPECT_EQ(loaded.status().message().find('\n'), std::string::npos);
    }
    EXPECT_TRUE(parse_session(whole, model_, cache_maker()).ok());
  }
}

TEST_F(SessionFile, CorruptedFilesAreRefused) {
  std::mt19937_64 random(11);
  for (const std::string policy : {"full", "streaming:sinks=4,window=36", "h2o:budget=24,recent=8",
                                   "cascade:size=32,n=4,sinks=4", "snapkv:budget=40,window=8+tova:budget=24"}) {
    SCOPED_TRACE(policy);
    const auto saved = runner(policy);
    ASSERT_TRUE(save_session(path(), saved->whole(), 32, extras()).ok());
    const std::vector<std::byte> whole = bytes_of();
    for (int i = 0; i < 500; ++i) {
      std::vector<std::byte> bytes = whole;
      const std::size_t at = random() % bytes.size();
      bytes[at] ^= static_cast<std::byte>(1 + random() % 255);
      const auto loaded = parse_session(bytes, model_, cache_maker());
      ASSERT_FALSE(loaded.ok()) << "byte " << at;
    }
  }
}

// A checksum is no proof: whoever writes one can write a wrong state with it. Contradictions are seen all the same.
TEST_F(SessionFile, WrongStatesWithRightChecksumsNeverCrash) {
  std::mt19937_64 random(12);
  int refused = 0, accepted = 0;
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    const auto saved = runner(policy);
    ASSERT_TRUE(save_session(path(), saved->whole(), 32, extras()).ok());
    const std::vector<std::byte> whole = bytes_of();
    // The second block.
    std::uint64_t head = 0, length = 0;
    std::memcpy(&head, whole.data() + 8 + 8, 8);
    const std::size_t state = 8 + 16 + head + 16;
    std::memcpy(&length, whole.data() + state + 8, 8);
    for (int i = 0; i < 60; ++i) {
      std::vector<std::byte> bytes = whole;
      for (std::uint64_t flips = 1 + random() % 3; flips > 0; --flips)
        bytes[state + 16 + random() % length] ^= static_cast<std::byte>(1 + random() % 255);
      Hasher hasher;
      hasher.add(std::span(bytes).subspan(state, 16 + length));
      const Hash128 hash = hasher.digest();
      std::memcpy(bytes.data() + state + 16 + length, &hash.low, 8);
      std::memcpy(bytes.data() + state + 16 + length + 8, &hash.high, 8);
      auto loaded = parse_session(bytes, model_, cache_maker());
      ++(loaded.ok() ? accepted : refused);
      if (!loaded.ok()) continue;
      // What was accepted can go on, whatever it then writes.
      SequenceRunner again(std::move(loaded->sequence));
      const auto more = random_tokens(40, file_spec().vocab, 9);
      (void)again.feed(more, 20, Logits::kNone, {});
    }
  }
  EXPECT_GT(refused, 500);
  EXPECT_GT(accepted, 20);  // a score, a counter, a message
}

TEST_F(SessionFile, FilesOfOtherModelsAndFormatsAreRefused) {
  const auto saved = runner("full");
  ASSERT_TRUE(save_session(path(), saved->whole(), 0, {}).ok());
  RandomModelSpec other = file_spec();
  other.seed = 2;
  const TemporaryFile file(make_random_model(other));
  const auto model = load(file.path(), {.threads = 1, .page_slots = 16});
  const auto loaded = load_session(path(), model, cache_maker());
  EXPECT_EQ(loaded.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(loaded.status().message().find("another model"), std::string::npos);
  std::vector<std::byte> later = bytes_of();
  later[7] = std::byte{'3'};
  EXPECT_EQ(parse_session(later, model_, cache_maker()).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(load_session(path("missing"), model_, cache_maker()).status().code(), StatusCode::kNotFound);
}

TEST_F(SessionFile, OtherKernelsContinueWithAWarning) {
  if (find_kernels("auto") == find_kernels("generic")) GTEST_SKIP() << "one kernel table only";
  const auto saved = runner("h2o:budget=24,recent=8");
  ASSERT_TRUE(save_session(path(), saved->whole(), 0, {}).ok());
  const auto model = load(file_.path(), {.threads = 1, .isa = "generic", .page_slots = 16});
  auto loaded = load_session(path(), model, [&](const SessionHead&, const RetentionPolicy&) {
    return new_cache(model, std::uint64_t{1} << 26);
  });
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_TRUE(loaded->other_arithmetic);
}

// Kernels of one arithmetic continue each other's sessions and share prefixes: AVX2 and AVX-512 do, the other tables
// have their own.
TEST(ArithmeticId, TellsWhatDecidesTheBits) {
  const TemporaryFile file(make_random_model({}));
  const auto id_of = [&](std::string_view isa) {
    const auto model = load(file.path(), {.threads = 1, .isa = std::string(isa)});
    return model->arithmetic_id(model->kv_shape.page);
  };
  const auto shares = [](std::string_view isa) { return isa == "avx2" || isa == "avx512"; };
  for (const std::string_view one : kernel_names())
    for (const std::string_view other : kernel_names())
      EXPECT_EQ(id_of(one) == id_of(other), one == other || (shares(one) && shares(other))) << one << " " << other;
}

TEST_F(SessionFile, AFullDiskKeepsTheOldFile) {
  const auto saved = runner("full");
  ASSERT_TRUE(save_session(path(), saved->whole(), 0, {}).ok());
  const std::vector<std::byte> before = bytes_of();
  run_text(*saved, Text(0, 30, 9), 32);
  {
    const FileSizeLimit limit(before.size() / 2);
    const Status status = save_session(path(), saved->whole(), 0, {});
    EXPECT_EQ(status.code(), StatusCode::kResourceExhausted) << status.message();
  }
  EXPECT_EQ(bytes_of(), before);
  EXPECT_FALSE(std::filesystem::exists(path("session.partial")));
}

// Killed at many moments of writing: the old file is whole, and so is the next one.
TEST_F(SessionFile, AKilledWriterKeepsTheOldFile) {
  const auto saved = runner("full", 200);
  ASSERT_TRUE(save_session(path(), saved->whole(), 0, {}).ok());
  const std::vector<std::byte> before = bytes_of();
  const std::vector<std::byte> other = [&] {
    const auto next = runner("full", 250);
    EXPECT_TRUE(save_session(path("other"), next->whole(), 0, {}).ok());
    return bytes_of("other");
  }();
  const auto next = runner("full", 250);
  int killed = 0, whole = 0;
  for (int i = 0; i < 40; ++i) {
    int saved_once[2];
    ASSERT_EQ(::pipe(saved_once), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      for (bool first = true;; first = false) {
        if (!save_session(path(), next->whole(), 0, {}).ok()) ::_exit(1);
        if (first && ::write(saved_once[1], "", 1) != 1) ::_exit(1);
      }
    }
    ::close(saved_once[1]);
    // On a busy machine, a child may be killed before its first save every time. The last ones are waited for.
    char byte = 0;
    if (i >= 30) {
      EXPECT_EQ(::read(saved_once[0], &byte, 1), 1);
    }
    ::usleep(static_cast<useconds_t>(300 + 250 * i));
    ::kill(child, SIGKILL);
    ::close(saved_once[0]);
    int status = 0;
    ::waitpid(child, &status, 0);
    killed += WIFSIGNALED(status) ? 1 : 0;
    const std::vector<std::byte> now = bytes_of();
    ASSERT_TRUE(now == before || now == other);
    whole += now == other ? 1 : 0;
  }
  EXPECT_EQ(killed, 40);
  EXPECT_GT(whole, 0);
  EXPECT_TRUE(save_session(path(), next->whole(), 0, {}).ok()) << "what was left behind is in the way";
}

}  // namespace
}  // namespace kvasir::test
