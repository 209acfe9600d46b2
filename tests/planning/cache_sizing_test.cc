// How a memory is spent on the cache: chunk, cap, budget; and what is refused, with the figures that it names.
#include "planning/cache_sizing.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "backend/cpu/cpu_backend.h"
#include "base/system_memory.h"
#include "kvasir/engine.h"
#include "model/transformer.h"
#include "sequence/policy_cases.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

// A model of the shape of the small one, with memory to spare.
CacheConditions plenty() {
  CacheConditions conditions;
  conditions.shape = {6, 3, PageFormat{64, 32, KvType::kF16}, 0};
  conditions.context = 2048;
  conditions.available = 4096 * kMiB;
  conditions.workspace_bytes = [](const Backend::WorkspaceRequest& work) {
    return static_cast<std::uint64_t>(work.rows) * 40000;
  };
  return conditions;
}

struct Default {
  std::int64_t cap = 0;
  int chunk = 0;
};

Default default_of(const CacheConditions& conditions) {
  const auto size = size_cache(conditions, {}, 1);
  EXPECT_TRUE(size.ok()) << size.status().message();
  if (!size.ok()) return {};
  long sinks = 0, window = 0;
  EXPECT_EQ(std::sscanf(size->policy->traits().spec.c_str(), "streaming:sinks=%ld,window=%ld", &sinks, &window), 2);
  return {sinks + window, prompt_chunk(*size->policy, size->chunk)};
}

std::uint64_t need(const CacheConditions& conditions, std::int64_t cap, int chunk) {
  const std::int64_t tokens = std::int64_t{1} << 50;
  return plan_kv_memory(conditions.shape, **make_policy("streaming:cap=" + std::to_string(cap)),
                        {tokens, tokens, chunk, 1})
      .bytes;
}

// The states of layers are as if the memory were as much smaller.
TEST(CacheSizing, StatesAreSetAside) {
  for (const std::optional<PolicySpec>& spec :
       {std::optional<PolicySpec>(), std::optional(PolicySpec::named("full")), std::optional(PolicySpec::named("h2o"))})
    for (const std::uint64_t memory : {kMiB, 3 * kMiB, 9 * kMiB}) {
      CacheConditions without = plenty(), with = without;
      with.shape.states = {{4, 50048}, {2, 128}};
      without.kv_memory = memory;
      with.kv_memory = memory + with.shape.state_bytes();
      const auto expected = size_cache(without, spec, 1), size = size_cache(with, spec, 1);
      ASSERT_EQ(size.ok(), expected.ok());
      if (!size.ok()) continue;
      EXPECT_EQ(size->policy->traits().spec, expected->policy->traits().spec);
      EXPECT_EQ(size->chunk, expected->chunk);
      EXPECT_EQ(fit_cache(with, *size->policy).needed,
                fit_cache(without, *size->policy).needed + with.shape.state_bytes());
      EXPECT_EQ(least_prompt_bytes(with.shape, *size->policy, 300, 64),
                least_prompt_bytes(without.shape, *size->policy, 300, 64) + with.shape.state_bytes());
    }
}

TEST(CacheSizing, ASmallMemoryIsSpentOnTokens) {
  CacheConditions conditions = plenty();
  EXPECT_EQ(size_cache(conditions, {}, 1)->chunk, 0) << "nothing is chosen where all fits";
  for (conditions.kv_memory = kMiB / 2; conditions.kv_memory < 24 * kMiB; conditions.kv_memory += kMiB / 2 + 12345) {
    SCOPED_TRACE(conditions.kv_memory);
    const Default chosen = default_of(conditions);
    EXPECT_LE(need(conditions, chosen.cap, chosen.chunk), conditions.kv_memory);
    if (chosen.cap == conditions.context) continue;
    EXPECT_GT(need(conditions, chosen.cap + 1 + chosen.cap / 2048, chosen.chunk), conditions.kv_memory);
    EXPECT_TRUE(chosen.chunk == 16 || chosen.chunk * 16 <= chosen.cap + 64) << chosen.cap << ' ' << chosen.chunk;
    // Within a page and a sixteenth of what single tokens would leave.
    EXPECT_GT(need(conditions, chosen.cap * 17 / 16 + 64, 1), conditions.kv_memory) << chosen.cap;
    // A chunk that is given stays.
    conditions.chunk = 64;
    if (need(conditions, 5, 64) <= conditions.kv_memory) {
      EXPECT_EQ(default_of(conditions).chunk, 64);
    }
    conditions.chunk = 0;
  }
  conditions.kv_memory = 100;
  const Status none = size_cache(conditions, {}, 1).status();
  EXPECT_EQ(none.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(none.settings(), std::vector<std::string_view>{"kv_memory"}) << none.message();
  conditions.chunk = 512;
  EXPECT_EQ(size_cache(conditions, {}, 1).status().settings(), (std::vector<std::string_view>{"kv_memory", "chunk"}));
}

TEST(CacheSizing, TheWorkspaceIsLeftRoomFor) {
  CacheConditions conditions = plenty();
  for (const std::uint64_t available : {8 * kMiB, 12 * kMiB, 20 * kMiB, 40 * kMiB, 60 * kMiB, 100 * kMiB}) {
    SCOPED_TRACE(available);
    conditions.available = available;
    const auto size = size_cache(conditions, {}, 1);
    ASSERT_TRUE(size.ok()) << size.status().message();
    const Default chosen = default_of(conditions);
    EXPECT_LE(size->bytes + static_cast<std::uint64_t>(chosen.chunk) * 40000, available);
    EXPECT_LE(size->bytes, available / 10 * 8);
    EXPECT_GE(size->bytes, need(conditions, chosen.cap, chosen.chunk));
    const auto full = size_cache(conditions, PolicySpec::named("full"), 1);
    ASSERT_TRUE(full.ok());
    EXPECT_LE(full->bytes + static_cast<std::uint64_t>(prompt_chunk(*full->policy, full->chunk)) * 40000, available);
  }
}

// For a policy by range the largest chunk that fits is taken; for others, and where one is given, the refusal names it.
TEST(CacheSizing, TheChunkThatFitsIsTakenOrNamed) {
  CacheConditions conditions = plenty();
  int taken = 0, named = 0;
  for (const char* spec : {"streaming:cap=600", "window:size=700", "h2o:budget=600,recent=300", "tova:budget=700"})
    for (conditions.chunk = 0; conditions.chunk <= 512; conditions.chunk += 512)
      for (conditions.kv_memory = 2 * kMiB; conditions.kv_memory < 8 * kMiB; conditions.kv_memory += kMiB / 5) {
        SCOPED_TRACE(std::string(spec) + " " + std::to_string(conditions.kv_memory));
        const auto policy = std::move(*make_policy(spec));
        const std::int64_t tokens = std::int64_t{1} << 50;
        const auto fits = [&](int chunk) {
          return plan_kv_memory(conditions.shape, *policy, {tokens, tokens, chunk, 1}).bytes <= conditions.kv_memory;
        };
        const auto size = size_cache(conditions, *PolicySpec::parse(spec), 1);
        const bool chooses = conditions.chunk == 0 && policy->traits().chunk == 0;
        if (size.ok()) {
          const int chunk = prompt_chunk(*policy, size->chunk);
          EXPECT_TRUE(fits(chunk));
          if (!chooses) {
            EXPECT_EQ(chunk, prompt_chunk(*policy, conditions.chunk));
          }
          if (chooses && chunk < 512) {
            ++taken;
            EXPECT_FALSE(fits(2 * chunk));
          }
          EXPECT_EQ(size->bytes, conditions.kv_memory);
          continue;
        }
        const std::string& message = size.status().message();
        const std::size_t at = message.find("a chunk of ", message.find(';'));
        int chunk = 0;
        if (at != std::string::npos) std::sscanf(message.c_str() + at, "a chunk of %d would fit", &chunk);
        if (chooses) {
          EXPECT_FALSE(fits(16));
          EXPECT_EQ(chunk, 0) << message;
        } else if (chunk == 0) {
          EXPECT_FALSE(fits(1)) << message;
        } else {
          ++named;
          EXPECT_TRUE(fits(chunk)) << message;
          EXPECT_FALSE(fits(2 * chunk)) << message;
          EXPECT_EQ(size.status().settings().back(), "chunk");
        }
      }
  EXPECT_GT(taken, 5);
  EXPECT_GT(named, 5);
}

TEST(CacheSizing, APromptThatIsHeldWholeIsRefusedWhereItCannotEnd) {
  CacheConditions conditions = plenty();
  int tried = 0;
  for (const PolicyCases& policies : all_policy_cases())
    for (const std::string& spec : policies.evicting) {
      const auto policy = std::move(*make_policy(spec));
      if (!policy->traits().holds_prompts) continue;
      SCOPED_TRACE(spec);
      ++tried;
      const auto check = [&](ContextPlace place, std::int64_t tokens, std::uint64_t budget) {
        return check_prompt(conditions.shape, *policy, place, place.held, tokens, 0, 2048, budget);
      };
      EXPECT_TRUE(check({}, 2048, 4096 * kMiB).ok());
      const Status longer = check({}, 2049, 4096 * kMiB);
      EXPECT_EQ(longer.code(), StatusCode::kResourceExhausted);
      EXPECT_NE(longer.message().find("2049"), std::string::npos) << longer.message();
      if (policy->context_use() == ContextUse::kHeld) {
        EXPECT_TRUE(check({5000, 100}, 1948, 4096 * kMiB).ok());
        EXPECT_FALSE(check({5000, 100}, 1949, 4096 * kMiB).ok());
      }
      const std::uint64_t bytes = plan_kv_memory(conditions.shape, *policy, {1000, 1000, 0, 1}).bytes;
      EXPECT_TRUE(check({}, 1000, bytes).ok());
      const Status large = check({}, 1000, bytes - 1);
      EXPECT_NE(large.message().find(std::to_string(bytes) + " bytes"), std::string::npos) << large.message();
      // What repeats the text is not needed to read on.
      EXPECT_FALSE(check({100, 100}, 1000, bytes / (policy->as<RepeatsText>() != nullptr ? 4 : 2)).ok());
    }
  EXPECT_GT(tried, 2);
}

// What the library says about such a prompt, before it reads any of it; and the next one is read.
TEST(CacheSizing, SessionsRefuseBeforeTheyRead) {
  auto engine = Engine::open({.model = small_model(), .threads = 1});
  ASSERT_TRUE(engine.ok());
  std::string text;
  for (int i = 0; i < 2500; ++i) text += " river";
  for (const char* spec : {"snapkv:budget=256", "pyramidkv:budget=256", "cake:budget=256", "full"}) {
    SCOPED_TRACE(spec);
    const auto session = (*engine)->new_session({.policy = spec});
    ASSERT_TRUE(session.ok()) << session.status().message();
    int calls = 0;
    const Status refused = (*session)->read(text, [&](std::int64_t, std::int64_t) { return ++calls >= 0; });
    EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted);
    EXPECT_NE(refused.message().find("there is room for 2048"), std::string::npos) << refused.message();
    EXPECT_EQ(calls, 0);
    EXPECT_EQ((*session)->kv().seen, 0);
    EXPECT_TRUE((*session)->read("Once upon a time").ok());
  }
  auto small = Engine::open({.model = small_model(), .threads = 1, .kv_memory = 2 * kMiB});
  ASSERT_TRUE(small.ok());
  for (const char* spec : {"snapkv:budget=64", "full"}) {
    const auto session = (*small)->new_session({.policy = spec});
    const Status refused = (*session)->read(text.substr(0, 1500 * 6));
    EXPECT_NE(refused.message().find("but the KV memory has 2097152"), std::string::npos) << refused.message();
    EXPECT_EQ((*session)->kv().seen, 0);
  }
}

// A chosen chunk changes no bit, and is the one that runs.
TEST(CacheSizing, AChosenChunkChangesNoBit) {
  const GenerateOptions greedy{.max_tokens = 20, .ignore_eos = true, .sampling = {.temperature = 0}};
  std::string text;
  for (int i = 0; i < 150; ++i) text += "The old man went down to the river number " + std::to_string(i) + ". ";
  std::string expected;
  std::vector<std::int64_t> first_steps;
  for (const std::uint64_t memory : {64 * kMiB, kMiB * 3 / 2}) {
    auto engine = Engine::open({.model = small_model(), .threads = 1, .kv_memory = memory});
    ASSERT_TRUE(engine.ok());
    const auto session = (*engine)->new_session({.policy = "streaming:cap=400"});
    ASSERT_TRUE(session.ok()) << session.status().message();
    first_steps.push_back(0);
    ASSERT_TRUE((*session)
                    ->read(text,
                           [&](std::int64_t done, std::int64_t) {
                             if (first_steps.back() == 0) first_steps.back() = done;
                             return true;
                           })
                    .ok());
    const auto result = (*session)->generate(greedy, {});
    ASSERT_TRUE(result.ok());
    if (expected.empty()) expected = result->text;
    EXPECT_EQ(result->text, expected);
    EXPECT_LE(result->kv.bytes_peak, memory);
  }
  EXPECT_GT(first_steps.front(), 128) << "chunks of 512, or what the policy takes of them";
  EXPECT_LE(first_steps.back(), 128);
}

// A control group of this many bytes, on a system made of files.
class Container : public ::testing::TestWithParam<std::tuple<bool, std::uint64_t>> {
 protected:
  Container() : root_(::testing::TempDir() + "kvasir-container-" + std::to_string(::getpid())) {
    put("/proc/meminfo", "MemAvailable:   24000000 kB\n");
  }
  ~Container() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  std::uint64_t available(std::uint64_t limit, std::uint64_t used) const {
    const bool old = std::get<0>(GetParam());
    put("/proc/self/cgroup", old ? "4:memory:/docker/1\n" : "0::/\n");
    const std::string group = root_ + "/sys/fs/cgroup/" + (old ? "memory/" : "");
    put("/sys/fs/cgroup/" + std::string(old ? "memory/memory.limit_in_bytes" : "memory.max"), std::to_string(limit));
    put("/sys/fs/cgroup/" + std::string(old ? "memory/memory.usage_in_bytes" : "memory.current"), std::to_string(used));
    return available_memory(root_).value();
  }

  std::string root_;
};

// What `info` and `plan` say before, and what `run` decides once the weights are loaded, is the same; and all of it
// together stays within the container.
TEST_P(Container, HoldsWhatRunTakes) {
  const std::uint64_t limit = std::get<1>(GetParam()) * kMiB;
  const std::uint64_t process = 12 * kMiB;  // the program itself
  const auto model = load(small_model(), {.threads = 2});
  const auto conditions = [&](std::uint64_t left) {
    CacheConditions now{model->kv_shape, model->config.context, 0, 0, left, {}};
    now.workspace_bytes = [&](const Backend::WorkspaceRequest& work) {
      return cpu_workspace_bytes(backend_shape(model->config), work, 2);
    };
    return now;
  };
  const std::uint64_t before = available(limit, process);
  EXPECT_EQ(before, limit - process);
  const std::uint64_t after = available(limit, process + model->weight_bytes);
  ASSERT_EQ(after, before - model->weight_bytes);
  for (const char* spec : {"", "full", "streaming:cap=1000", "h2o:budget=512,recent=256", "snapkv:budget=512"}) {
    SCOPED_TRACE(spec);
    const auto parsed = PolicySpec::parse(spec);
    const auto asked = parsed.ok() ? std::optional(*parsed) : std::nullopt;
    const auto said = size_cache(conditions(before - model->weight_bytes), asked, 1);
    const auto done = size_cache(conditions(after), asked, 1);
    ASSERT_TRUE(done.ok()) << done.status().message();
    EXPECT_EQ(said->policy->traits().spec, done->policy->traits().spec);
    EXPECT_EQ(said->bytes, done->bytes);
    EXPECT_EQ(said->chunk, done->chunk);
    const int chunk = prompt_chunk(*done->policy, done->chunk);
    const KvMemory kv = plan_kv_memory(model->kv_shape, *done->policy, {2048, 2048, chunk, 1});
    const std::uint64_t workspace =
        conditions(0).workspace_bytes(plan_workspace(model->kv_shape, *done->policy, kv, chunk, 1));
    EXPECT_LE(process + model->weight_bytes + done->bytes + workspace, limit);
  }
  // As little as this is refused, with the figures.
  const Status none = size_cache(conditions(200000), {}, 1).status();
  EXPECT_EQ(none.code(), StatusCode::kResourceExhausted) << none.message();
}

INSTANTIATE_TEST_SUITE_P(Versions, Container,
                         ::testing::Combine(::testing::Bool(),
                                            ::testing::Values(std::uint64_t{64}, std::uint64_t{256})));

}  // namespace
}  // namespace kvasir::test
