// Text beside the engine: the tokens of requests, from any thread.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "chat/chat_template.h"
#include "chat/template_file.h"
#include "kvasir/engine.h"
#include "support/engine_fixture.h"
#include "support/mebibyte.h"
#include "support/shared_data.h"
#include "text/vocabularies.h"

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

// A prompt that ends inside thoughts stands for a model that thinks whatever its prompt says.
TEST(ModelText, ThinkingOffClosesThoughtsAtOnce) {
  const auto engine = open_engine();
  const std::string closing = "</t> So ";
  ThoughtMarks marks{"<t>", {"</t>"}, true};
  marks.closing = *engine->text().encode(closing, false, false);
  RequestOptions options = texts()[3];
  options.generate.thoughts = std::make_shared<const ThoughtMarks>(std::move(marks));
  const GenerateResult thinks = run(*engine, options);
  EXPECT_GT(thinks.thought_tokens, 5);
  options.thinking = Thinking::kOff;
  const GenerateResult off = run(*engine, options);
  EXPECT_EQ(off.thought_tokens, 0);
  EXPECT_NE(off.text.substr(0, 1 + closing.size()).find("</t> So"), std::string::npos) << off.text;
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

// A random conversation, of roles that templates take: most of them alternate, some do not.
std::vector<Message> random_conversation(std::mt19937& random) {
  constexpr const char* kContents[] = {"Hi",         "",         " spaced ", "two\nlines",
                                       "<|im_end|>", "[INST] x", "é 你好",   "{{ x }}"};
  const auto below = [&](unsigned n) { return static_cast<unsigned>(random() % n); };
  std::vector<Message> messages;
  if (below(2) == 0) messages.push_back({"system", kContents[below(8)]});
  const bool alternates = below(4) != 0;
  const unsigned count = 1 + below(5);
  for (unsigned i = 0; i < count; ++i) {
    const char* turn = i % 2 == 0 ? "user" : "assistant";
    constexpr const char* kRoles[] = {"user", "assistant", "system"};
    messages.push_back({alternates ? turn : kRoles[below(3)], kContents[below(8)]});
  }
  return messages;
}

// What a request reads is the template's own output (tests/chat/chat_check.py has that against Jinja2), whatever the
// order of roles: no turn that the template does not write. `kvasir tokenize --chat` prints the same function's output.
TEST(ModelText, AConversationIsTheTemplatesOwnOutput) {
  const std::unique_ptr<Tokenizer> tokenizer = tokenizer_of_file(small_model());
  ASSERT_NE(tokenizer, nullptr);
  int templates = 0, written = 0, refused = 0;
  for (const auto& entry : std::filesystem::directory_iterator(source_dir() + "/tests/chat/templates")) {
    const std::string name = entry.path().stem().string();
    if (name == "broken") continue;
    const std::string source = template_file(name);
    const auto engine = open_engine({.chat_template = source});
    const auto chat = make_chat_template(tokenizer->vocabulary(), {.source = source});
    ASSERT_TRUE(chat.ok()) << name;
    std::mt19937 random(7);
    for (int i = 0; i < 60; ++i) {
      RequestOptions options;
      options.messages = random_conversation(random);
      options.prompt_end = i % 2 == 0 ? PromptEnd::kOpen : PromptEnd::kClosed;
      std::vector<ChatMessage> said;
      std::string shown = name;
      for (const Message& message : options.messages) {
        said.push_back({message.role, message.content});
        shown += " " + message.role + ":" + message.content;
      }
      const Result<ChatPrompt> rendered = (*chat)->render(said, options.prompt_end == PromptEnd::kOpen);
      const Result<PromptTokens> prompt = engine->text().encode_prompt(options);
      if (!rendered.ok()) {
        EXPECT_EQ(prompt.status().message(), rendered.status().message()) << shown;
        ++refused;
        continue;
      }
      const auto tokens = encode_chat(*tokenizer, *rendered);
      if (tokens.ok() && tokens->empty()) continue;
      ASSERT_TRUE(prompt.ok()) << shown << ": " << prompt.status().message();
      EXPECT_EQ(prompt->tokens, *tokens) << shown;
      EXPECT_GE(prompt->system_tokens, 0);
      EXPECT_LE(prompt->system_tokens, std::ssize(prompt->tokens)) << shown;
      ++written;
    }
    ++templates;
  }
  EXPECT_EQ(templates, 27);
  EXPECT_GT(written, 800);
  EXPECT_GT(refused, 100);
}

// A chat under a cache that is far too small for it still has its system message; without protection it is gone.
TEST(ModelText, WhatAChatProtectsStays) {
  const auto engine = open_engine();
  RequestOptions options;
  options.messages = {{"system", "You are Bob, who knows the sea and its storms."}, {"user", "Tell me of them."}};
  const Result<PromptTokens> prompt = engine->text().encode_prompt(options);
  ASSERT_TRUE(prompt.ok());
  ASSERT_GT(prompt->system_tokens, 8);
  EXPECT_EQ(*engine->text().system_tokens(options.messages), prompt->system_tokens);
  EXPECT_EQ(*engine->text().system_tokens(std::vector<Message>{{"user", "Hi"}}), 0)
      << "this template has none of its own";
  for (const std::string policy : {"streaming:cap=64", "h2o:budget=64", "tova:budget=64", "lethe:max=64,start=48",
                                   "cascade:size=64", "window:size=64", "snapkv:budget=64,window=8+streaming:cap=64"}) {
    for (const std::int64_t protect : {prompt->system_tokens, std::int64_t{0}}) {
      RequestOptions long_answer = options;
      long_answer.policy = policy;
      long_answer.protect = protect;
      long_answer.label = policy + std::to_string(protect);
      long_answer.inspect = true;
      long_answer.generate = {.max_tokens = 200, .ignore_eos = true};
      const GenerateResult result = run(*engine, long_answer);
      const auto view = engine->tokens_of({.label = long_answer.label});
      ASSERT_TRUE(view.ok()) << view.status().message();
      // Whole in every table, from token 0 on.
      ASSERT_FALSE(view->kept.empty());
      const std::int64_t whole = view->kept.front().level == TokenView::kLevels ? view->kept.front().buckets : 0;
      if (protect > 0) {
        EXPECT_GE(whole, protect) << policy;
        EXPECT_NE(result.kv.policy.find("protect=" + std::to_string(protect)), std::string::npos) << result.kv.policy;
      } else {
        EXPECT_LT(whole, prompt->system_tokens) << policy;
      }
    }
  }
  // As many as the policy takes: half of what it keeps.
  RequestOptions tight = options;
  tight.policy = "streaming:cap=20";
  tight.protect = prompt->system_tokens;
  ASSERT_GT(tight.protect, 10);
  tight.generate = {.max_tokens = 30, .ignore_eos = true};
  EXPECT_EQ(run(*engine, tight).kv.policy, "streaming:sinks=4,window=16,protect=10");
  tight.policy = "streaming:cap=20,protect=0";
  EXPECT_EQ(run(*engine, tight).kv.policy, "streaming:sinks=4,window=16");
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
