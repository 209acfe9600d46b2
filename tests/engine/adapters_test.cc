// LoRA adapters through the public library and in mixed batches: bits, prefixes, sessions.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <map>

#include "kvasir/engine.h"
#include "sequence/step.h"
#include "support/engine_fixture.h"
#include "support/originals.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::string adapter_of(const std::string& name) {
  return source_dir() + "/tests/reference/adapters/" + name + ".gguf";
}

constexpr int kWords = 96;  // of the vocabulary

struct Reader {
  std::vector<AppliedAdapter> adapters;
  std::vector<TokenId> tokens;
  std::unique_ptr<Sequence> sequence = {};
  std::size_t at = 0;
  std::vector<float> logits = {};
};

// Reads the texts of all readers side by side, each in passes of its own numbers of rows.
void read_together(const std::shared_ptr<LoadedModel>& model, std::vector<Reader>& readers, std::uint64_t seed) {
  auto cache = new_cache(model, std::uint64_t{1} << 26);
  ASSERT_TRUE(cache.ok());
  std::mt19937_64 random(seed);
  for (Reader& reader : readers)
    reader.sequence =
        std::make_unique<Sequence>(model, *cache, *make_policy("full"), std::optional<KvCodec>(), reader.adapters);
  Step step(model, *cache);
  for (;;) {
    std::vector<StepRequest> requests;
    std::vector<Reader*> reading;
    for (Reader& reader : readers) {
      if (reader.at == reader.tokens.size()) continue;
      if (random() % 4 == 0 && !requests.empty()) continue;  // this one waits
      Sequence::Input input;
      input.rest = std::span(reader.tokens).subspan(reader.at);
      input.chunk = 64;
      input.most_rows = 1 + static_cast<int>(random() % 40);
      input.logits = Logits::kAll;
      requests.push_back({reader.sequence.get(), input});
      reading.push_back(&reader);
    }
    if (requests.empty()) return;
    std::vector<StepResult> results(requests.size());
    ASSERT_TRUE(step.run(step.plan(requests), requests, results).ok());
    for (std::size_t i = 0; i < requests.size(); ++i) {
      ASSERT_TRUE(results[i].status.ok()) << results[i].status.message();
      reading[i]->at += static_cast<std::size_t>(results[i].tokens);
      reading[i]->logits.insert(reading[i]->logits.end(), results[i].logits.begin(), results[i].logits.end());
    }
  }
}

bool same_float_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class MixedBatch : public testing::TestWithParam<const char*> {};

TEST_P(MixedBatch, EveryRowHasTheBitsOfItsTextAlone) {
  const std::string name = GetParam();
  // The same adapter twice, so that scales and places differ and shapes do not.
  const std::vector<std::vector<AppliedAdapter>> kinds = {{},       {{0, 1}}, {{1, 0.5F}}, {{0, 1}, {1, -0.25F}},
                                                          {{0, 1}}, {},       {{1, 1}}};
  std::vector<std::vector<float>> alone;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto model = load(original(name), {.lora = {{adapter_of(name), 0}, {adapter_of(name), 0}}, .threads = 1});
    std::vector<Reader> one(1);
    one[0].adapters = kinds[i];
    one[0].tokens = random_tokens(130, kWords, i);
    read_together(model, one, 1);
    alone.push_back(one[0].logits);
  }
  EXPECT_NE(alone[0], alone[1]);
  const auto without = load(original(name), {.threads = 2});
  std::vector<Reader> bare(1);
  bare[0].tokens = random_tokens(130, kWords, 0);
  read_together(without, bare, 2);
  EXPECT_TRUE(same_float_bits(bare[0].logits, alone[0])) << "adapters that are loaded but not applied";
  for (const int threads : {1, 2, 3}) {
    const auto model =
        load(original(name), {.lora = {{adapter_of(name), 0}, {adapter_of(name), 0}}, .threads = threads});
    std::vector<Reader> readers(kinds.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      readers[i].adapters = kinds[i];
      readers[i].tokens = random_tokens(130, kWords, i);
    }
    read_together(model, readers, static_cast<std::uint64_t>(threads));
    for (std::size_t i = 0; i < kinds.size(); ++i)
      EXPECT_TRUE(same_float_bits(readers[i].logits, alone[i])) << "text " << i << ", " << threads << " threads";
  }
}

INSTANTIATE_TEST_SUITE_P(All, MixedBatch, testing::Values("glm4", "llama", "qwen35"),
                         [](const testing::TestParamInfo<const char*>& info) { return std::string(info.param); });

// -- Requests and sessions --

std::unique_ptr<Engine> open_llama(std::vector<AdapterFile> adapters, EngineOptions options = {}) {
  options.model = original("llama");
  options.lora = std::move(adapters);
  options.threads = 1;
  options.kv_memory = std::uint64_t{16} << 20;
  options.prefix_memory = std::uint64_t{8} << 20;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return engine.ok() ? std::move(*engine) : nullptr;
}

using Chosen = std::optional<std::vector<AdapterScale>>;

RequestOptions asking(const Chosen& lora, std::uint64_t seed = 5) {
  RequestOptions options;
  options.tokens = random_tokens(100, kWords - 3, seed);
  for (std::int32_t& token : options.tokens) token += 3;
  options.policy = "full";
  options.lora = lora;
  options.generate.max_tokens = 20;
  options.generate.ignore_eos = true;
  options.generate.sampling.temperature = 0;
  options.generate.logprobs = 1;
  return options;
}

// The results of requests that run side by side.
std::vector<GenerateResult> run_all_asked(Engine& engine, const std::vector<RequestOptions>& requests) {
  std::map<RequestId, std::size_t> numbers;
  for (const RequestOptions& request : requests) {
    const auto id = engine.submit(request);
    EXPECT_TRUE(id.ok()) << id.status().message();
    if (id.ok()) numbers[*id] = numbers.size();
  }
  std::vector<GenerateResult> results(requests.size());
  while (engine.unfinished() > 0) {
    auto events = engine.poll();
    EXPECT_TRUE(events.ok()) << events.status().message();
    if (!events.ok()) break;
    for (Event& event : *events) {
      EXPECT_NE(event.kind, Event::Kind::kFailed) << event.status.message();
      if (event.kind == Event::Kind::kFinished) results[numbers.at(event.request)] = std::move(event.result);
    }
  }
  return results;
}

GenerateResult run_asked(Engine& engine, const RequestOptions& request) {
  return run_all_asked(engine, {request}).front();
}

std::vector<double> probabilities(const GenerateResult& result) {
  std::vector<double> all;
  for (const GeneratedToken& token : result.choices) all.push_back(token.token.log_probability);
  return all;
}

TEST(AdapterRequests, ChooseTheirAdapters) {
  const auto engine = open_llama({{adapter_of("llama")}, {adapter_of("llama"), 0}});
  const auto plain = open_llama({});
  ASSERT_EQ(engine->model().adapters.size(), 2u);
  EXPECT_GT(engine->model().adapters[0].bytes, 0u);
  EXPECT_EQ(engine->model().adapters[0].rank, 20);
  const std::vector<Chosen> kinds = {std::nullopt, std::vector<AdapterScale>{}, std::vector<AdapterScale>{{0, 0.5F}},
                                     std::vector<AdapterScale>{{1, 1}}, std::vector<AdapterScale>{{0, 1}, {1, 0.25F}}};
  std::vector<RequestOptions> requests;
  for (const Chosen& kind : kinds) requests.push_back(asking(kind));
  const std::vector<GenerateResult> together = run_all_asked(*engine, requests);
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto fresh = open_llama({{adapter_of("llama")}, {adapter_of("llama"), 0}});
    EXPECT_EQ(probabilities(run_asked(*fresh, requests[i])), probabilities(together[i])) << i;
  }
  EXPECT_EQ(probabilities(together[1]), probabilities(run_asked(*plain, asking(std::nullopt))));
  EXPECT_EQ(probabilities(together[0]), probabilities(together[3]));  // the same file
  EXPECT_NE(probabilities(together[0]), probabilities(together[1]));
  EXPECT_NE(probabilities(together[0]), probabilities(together[2]));
  EXPECT_NE(probabilities(together[0]), probabilities(together[4]));
}

TEST(AdapterRequests, DefaultsCanBeChanged) {
  const auto engine = open_llama({{adapter_of("llama"), 0}});
  const std::vector<double> without = probabilities(run_asked(*engine, asking(std::nullopt)));
  const std::vector<double> half = probabilities(run_asked(*engine, asking(std::vector<AdapterScale>{{0, 0.5F}})));
  EXPECT_NE(without, half);
  ASSERT_TRUE(engine->set_lora({{0, 0.5F}}).ok());
  EXPECT_EQ(engine->model().adapters[0].scale, 0.5F);
  EXPECT_EQ(probabilities(run_asked(*engine, asking(std::nullopt))), half);
  ASSERT_TRUE(engine->set_lora({}).ok());
  EXPECT_EQ(probabilities(run_asked(*engine, asking(std::nullopt))), without);
  EXPECT_FALSE(engine->set_lora({{1, 1}}).ok());
}

TEST(AdapterRequests, PrefixesAreOfTheSameAdaptersAndScalesAlone) {
  const auto engine = open_llama({{adapter_of("llama")}, {adapter_of("llama")}});
  const auto cached = [&](const Chosen& lora) { return run_asked(*engine, asking(lora)).cached; };
  const Chosen none = std::vector<AdapterScale>{}, first = std::vector<AdapterScale>{{0, 1}},
               half = std::vector<AdapterScale>{{0, 0.5F}}, both = std::nullopt;
  EXPECT_EQ(cached(none), 0);
  EXPECT_EQ(cached(first), 0);
  EXPECT_EQ(cached(half), 0);
  EXPECT_EQ(cached(both), 0);
  EXPECT_EQ(cached(none), 96);
  EXPECT_EQ(cached(first), 96);
  EXPECT_EQ(cached(std::vector<AdapterScale>{{0, 1}, {1, 0}}), 96);
  EXPECT_EQ(cached(half), 96);
  EXPECT_EQ(cached(both), 96);
  EXPECT_EQ(cached(std::vector<AdapterScale>{{0, 0.75F}}), 0);
}

// What a cached prefix continues has the same bits as a text that was read from its start.
TEST(AdapterRequests, PrefixesChangeNoBit) {
  for (const char* policy : {"full", "streaming:sinks=4,window=40"}) {
    RequestOptions request = asking(std::vector<AdapterScale>{{0, 0.5F}});
    request.policy = policy;
    const auto engine = open_llama({{adapter_of("llama")}}, {.chunk = 32});
    const GenerateResult cold = run_asked(*engine, request);
    const GenerateResult warm = run_asked(*engine, request);
    EXPECT_GT(warm.cached, 0) << policy;
    EXPECT_EQ(probabilities(warm), probabilities(cold)) << policy;
  }
}

TEST(AdapterRequests, PrefixesOnDiskAreOfTheSameAdaptersAndScalesAlone) {
  const std::filesystem::path folder = std::filesystem::temp_directory_path() / "kvasir-adapters-test";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const Chosen half = std::vector<AdapterScale>{{0, 0.5F}}, whole = std::vector<AdapterScale>{{0, 1}};
  const auto asked = [](const Chosen& lora) {
    RequestOptions request = asking(lora);
    request.tokens = random_tokens(400, kWords - 3, 9);
    for (std::int32_t& token : request.tokens) token += 3;
    return request;
  };
  std::vector<double> cold;
  {
    const auto engine = open_llama({{adapter_of("llama")}}, {.prefix_dir = folder.string()});
    cold = probabilities(run_asked(*engine, asked(half)));
    while (engine->settling()) ASSERT_TRUE(engine->poll().ok());
  }
  const auto engine = open_llama({{adapter_of("llama")}}, {.prefix_dir = folder.string()});
  EXPECT_EQ(run_asked(*engine, asked(whole)).cached, 0);
  const GenerateResult warm = run_asked(*engine, asked(half));
  EXPECT_EQ(warm.cached_from, "disk");
  EXPECT_EQ(probabilities(warm), cold);
  std::filesystem::remove_all(folder);
}

TEST(AdapterRequests, UnknownAdaptersAreRefused) {
  const auto engine = open_llama({{adapter_of("llama")}});
  const std::string name = engine->model().adapters[0].name;
  const std::vector<std::pair<std::vector<AdapterScale>, std::string>> wrong = {
      {{{1, 1}}, "there is no adapter 1; their ids are 0 to 0"},
      {{{-1, 1}}, "there is no adapter -1"},
      {{{0, 1}, {0, 1}}, "adapter 0 is named twice"},
      {{{0, 1, "nobody"}}, "there is no adapter 'nobody'"},
      {{{0, std::numeric_limits<float>::infinity()}}, "outside -1000 to 1000"}};
  for (const auto& [scales, message] : wrong) {
    const auto refused = engine->submit(asking(scales));
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.status().message().find(message), std::string::npos) << refused.status().message();
  }
  const GenerateResult by_id = run_asked(*engine, asking(std::vector<AdapterScale>{{0, 0.5F}}));
  const GenerateResult by_name = run_asked(*engine, asking(std::vector<AdapterScale>{{7, 0.5F, name}}));
  EXPECT_EQ(probabilities(by_name), probabilities(by_id));
  EXPECT_EQ(by_name.cached, 96);
}

TEST(AdapterSessions, KeepTheirAdapters) {
  const auto engine = open_llama({{adapter_of("llama"), 0}});
  const GenerateOptions greedy{.max_tokens = 20, .ignore_eos = true, .sampling = {.temperature = 0}, .logprobs = 1};
  const std::string path =
      (std::filesystem::temp_directory_path() / ("kvasir-adapters-" + std::to_string(::getpid()) + ".kvs")).string();
  auto session = engine->new_session({.policy = "full", .lora = std::vector<AdapterScale>{{0, 0.5F}}});
  ASSERT_TRUE(session.ok()) << session.status().message();
  ASSERT_TRUE((*session)->read("0123456789").ok());
  ASSERT_TRUE((*session)->save(path).ok());
  auto fork = (*session)->fork();
  ASSERT_TRUE(fork.ok());
  const std::vector<double> expected = probabilities(*(*session)->generate(greedy, {}));
  EXPECT_EQ(probabilities(*(*fork)->generate(greedy, {})), expected);

  // An engine with other adapters before it, and other defaults.
  const auto other = open_llama({{adapter_of("llama"), 1}});
  auto loaded = other->load_session(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(probabilities(*loaded->session->generate(greedy, {})), expected);

  const auto plain = open_llama({});
  const auto refused = plain->load_session(path);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(refused.status().message().find("is not loaded"), std::string::npos) << refused.status().message();
  std::filesystem::remove(path);

  // A request that continues it runs with its adapters too, and may name no others.
  auto continued = engine->new_session({.policy = "full", .lora = std::vector<AdapterScale>{{0, 0.5F}}});
  ASSERT_TRUE(continued.ok());
  RequestOptions request;
  request.session = std::shared_ptr<Session>(std::move(*continued));
  request.prompt = "0123456789";
  request.generate = greedy;
  request.lora = std::vector<AdapterScale>{{0, 1}};
  EXPECT_FALSE(engine->submit(request).ok());
  request.lora = std::vector<AdapterScale>{{0, 0.5F}};
  EXPECT_EQ(probabilities(run_asked(*engine, request)), expected);
}

}  // namespace
}  // namespace kvasir::test
