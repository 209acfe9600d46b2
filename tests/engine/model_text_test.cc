// Text beside the engine: the tokens of requests, from any thread.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "kvasir/engine.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

std::unique_ptr<Engine> open_engine(EngineOptions options = {}) {
  options.model = small_model();
  options.threads = 2;
  options.kv_memory = 64 * kMiB;
  auto engine = Engine::open(options);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(*engine);
}

GenerateResult run(Engine& engine, const RequestOptions& options) {
  const auto id = engine.submit(options);
  EXPECT_TRUE(id.ok()) << id.status().message();
  GenerateResult result;
  while (engine.unfinished() > 0)
    for (const auto events = engine.poll(); const Event& event : *events)
      if (event.kind == Event::Kind::kFinished) result = event.result;
  return result;
}

std::vector<RequestOptions> texts() {
  std::vector<RequestOptions> all(4);
  all[0].prompt = "Once upon a time there was a naïve fox.";
  all[1].messages = {{"user", "Who are you?"}};
  all[2].messages = {{"user", "Tell me of the sea."}, {"assistant", "It is deep."}, {"user", "More <|end|> of it."}};
  all[3].tokens = {5, 6, 7};
  for (RequestOptions& options : all) {
    options.generate.max_tokens = 20;
    options.generate.sampling.temperature = 0;
  }
  return all;
}

// The request as a server submits it: its text as tokens that were made elsewhere.
RequestOptions as_tokens(const ModelText& text, RequestOptions options) {
  Result<PromptTokens> prompt = text.encode_prompt(options);
  EXPECT_TRUE(prompt.ok()) << prompt.status().message();
  options.prompt.clear();
  options.messages.clear();
  options.template_arguments.clear();
  options.tokens = std::move(prompt->tokens);
  options.template_stops = std::move(prompt->stops);
  return options;
}

TEST(ModelText, ARequestOfItsTokensHasTheAnswerOfItsText) {
  const auto engine = open_engine();
  for (const RequestOptions& options : texts()) {
    const GenerateResult want = run(*engine, options);
    const GenerateResult got = run(*engine, as_tokens(engine->text(), options));
    EXPECT_EQ(got.text, want.text);
    EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
    EXPECT_EQ(got.finish_reason, want.finish_reason);
    EXPECT_EQ(got.tokens, want.tokens);
  }
}

TEST(ModelText, TakesTemplateArgumentsPerRequest) {
  constexpr char kTemplate[] =
      "{% for m in messages %}{{ m.content }}{% endfor %}{% if mood is defined %}{{ mood.name }}{{ mood.n + 1 }}{% "
      "endif %}";
  const auto engine =
      open_engine({.chat_template = kTemplate, .template_arguments = {{"mood", R"({"name":"x","n":1})"}}});
  RequestOptions options;
  options.messages = {{"user", "Hi"}};
  const auto text_of = [&] {
    const Result<PromptTokens> prompt = engine->text().encode_prompt(options);
    EXPECT_TRUE(prompt.ok()) << prompt.status().message();
    return prompt.ok() ? *engine->text().decode(prompt->tokens, true) : "";
  };
  EXPECT_NE(text_of().find("Hix2"), std::string::npos) << text_of();
  options.template_arguments = {{"mood", R"({"name":"grand","n":41})"}};
  EXPECT_NE(text_of().find("Higrand42"), std::string::npos) << text_of();
  EXPECT_EQ(run(*engine,
                [&] {
                  RequestOptions one = options;
                  one.generate.max_tokens = 1;
                  return one;
                }())
                .prompt_tokens,
            static_cast<std::int64_t>(engine->text().encode_prompt(options)->tokens.size()));
  options.template_arguments = {{"mood", R"({"name":"x"})"}};
  EXPECT_NE(engine->text().encode_prompt(options).status().message().find("line 1"), std::string::npos);
  options.template_arguments = {{"messages", "[]"}};
  EXPECT_EQ(engine->text().encode_prompt(options).status().code(), StatusCode::kInvalidArgument);
}

TEST(ModelText, RefusesWhatARequestRefuses) {
  const auto engine = open_engine();
  RequestOptions options;
  EXPECT_FALSE(engine->text().encode_prompt(options).ok());
  options.tokens = {1 << 30};
  EXPECT_EQ(engine->text().encode_prompt(options).status().message(), engine->submit(options).status().message());
  options.tokens.clear();
  options.prompt = "\xff";
  EXPECT_EQ(engine->text().encode_prompt(options).status().message(), engine->submit(options).status().message());
  const std::vector<std::int32_t> wrong = {-1};
  EXPECT_FALSE(engine->text().decode(wrong, true).ok());
  EXPECT_FALSE(engine->text().bytes_of(-1).ok());
}

// Text and plans are made by two other threads while passes run; all have the same results as alone.
TEST(ModelTextThreads, WorkBesidePasses) {
  const auto engine = open_engine();
  std::vector<std::vector<std::int32_t>> want;
  for (const RequestOptions& options : texts()) want.push_back(engine->text().encode_prompt(options)->tokens);
  const std::string alone = run(*engine, texts()[0]).text;
  const PlanRequest plan{.policy = "full", .prompt = 100, .max_tokens = 20};
  const std::uint64_t bytes = engine->plan(plan)->bytes;
  std::atomic<bool> stop = false;
  std::atomic<int> rounds = 0;
  const auto work = [&] {
    while (!stop || rounds == 0) {
      for (std::size_t i = 0; i < want.size(); ++i) {
        RequestOptions options = texts()[i];
        if (!options.messages.empty()) options.template_arguments = {{"unused", "true"}};
        EXPECT_EQ(engine->text().encode_prompt(options)->tokens, want[i]);
        EXPECT_TRUE(engine->text().decode(want[i], true).ok());
      }
      EXPECT_EQ(engine->plan(plan)->bytes, bytes);
      ++rounds;
    }
  };
  std::thread one(work), other(work);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(run(*engine, texts()[0]).text, alone);
  stop = true;
  one.join();
  other.join();
  EXPECT_GT(rounds, 1);
}

}  // namespace
}  // namespace kvasir::test
