// What enters a session's context: texts in parts, and messages after each way an answer can end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "chat/template_file.h"
#include "generation/token_stream.h"
#include "kvasir/engine.h"
#include "support/engine_fixture.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

using Tokens = std::vector<TokenId>;

std::string small_model_bytes() {
  std::ifstream file(small_model(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::byte> to_bytes(const std::string& text) {
  std::vector<std::byte> out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

// The small model without its markers.
std::string without_markers() {
  std::string bytes = small_model_bytes();
  const std::size_t at = bytes.find("<|user|>");
  EXPECT_NE(at, std::string::npos);
  return bytes.replace(at, 8, "<|xxxx|>");
}

// A session, and the same fed by hand with token ids.
class Twins {
 public:
  // `chat_template`: a file of tests/chat/templates, in place of the model's own.
  // `source`: the like as text.
  explicit Twins(const std::string& path, const std::string& chat_template = {}, const std::string& source = {}) {
    EngineOptions options;
    options.model = path;
    options.chat_template = source;
    if (!chat_template.empty()) options.chat_template = template_file(chat_template);
    options.threads = 1;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    session = std::move(*(*engine)->new_session({.policy = "full"}));
    options.threads = 1;
    model = *load_model(options, {});
    runner_ = new_runner(model, "full");
  }

  Tokens encode(const std::string& text, bool continues) const {
    auto tokens =
        model->tokenizer->encode(text, {.add_special = false, .parse_special = false, .continues = continues});
    EXPECT_TRUE(tokens.ok());
    return *tokens;
  }
  void feed(const Tokens& tokens) {
    const Status status = runner_->feed(
        tokens, 512, SequenceRunner::Logits::kLast, [&](std::int64_t, int, std::span<const float> logits) {
          next_ = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
          return true;
        });
    EXPECT_TRUE(status.ok());
  }
  TokenId next() const { return next_; }  // that a greedy sampler takes
  std::string greedy(std::int64_t tokens) {
    TokenStream stream(*model->tokenizer, false);
    std::string text;
    for (; tokens > 0; --tokens) {
      text += stream.push(next_);
      feed({next_});
    }
    return text + stream.flush();
  }
  GenerateResult generate(GenerateOptions options, const std::function<bool(std::string_view)>& on_text = {}) {
    options.sampling.temperature = 0;
    auto result = session->generate(options, on_text);
    EXPECT_TRUE(result.ok()) << result.status().message();
    return result.ok() ? *result : GenerateResult{};
  }
  std::int64_t seen() const { return runner_->sequence().only_table().next_index(); }
  void expect_same() {
    EXPECT_EQ(session->kv().seen, seen());
    EXPECT_EQ(generate({.max_tokens = 12, .ignore_eos = true}).text, greedy(12));
  }

  std::unique_ptr<Session> session;
  std::shared_ptr<LoadedModel> model;

 private:
  std::unique_ptr<SequenceRunner> runner_;
  TokenId next_ = 0;
};

Tokens operator+(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

TEST(SessionContext, TextInPartsIsTakenAsItStands) {
  for (const char* second : {"believable", "\nthere"}) {
    Twins twins(small_model());
    const Tokens tokens = twins.encode(second, true);
    std::string bytes;
    for (const TokenId token : tokens) bytes += twins.model->tokenizer->bytes_of(token);
    EXPECT_EQ(bytes, second) << "no space in front";
    ASSERT_TRUE(twins.session->read("un").ok());
    ASSERT_TRUE(twins.session->read(second).ok());
    twins.feed(Tokens{*twins.model->tokenizer->vocabulary().bos} + twins.encode("un", false) + tokens);
    twins.expect_same();
  }
}

// The ways to end an answer, and the options that bring them about.
enum class Way { kLength, kCancelled, kStopString, kReadOn, kNone };

GenerateResult answer(Twins& twins, Way way) {
  if (way == Way::kNone) return {};
  if (way == Way::kCancelled)
    return twins.generate({.max_tokens = 20, .ignore_eos = true}, [](std::string_view) { return false; });
  if (way == Way::kStopString) {
    auto fork = twins.session->fork();
    GenerateOptions options{.max_tokens = 20, .ignore_eos = true, .sampling = {.temperature = 0}};
    const std::string text = (*fork)->generate(options, {})->text;
    EXPECT_GT(text.size(), 12u);
    options.stop = {text.substr(8, 4)};
    return twins.generate(options);
  }
  return twins.generate({.max_tokens = 5, .ignore_eos = true});
}

TEST(SessionContext, MarkersCloseWhatEndedWithoutThem) {
  constexpr TokenId kUser = 3;
  constexpr TokenId kAssistant = 4;
  constexpr TokenId kEnd = 5;
  for (const Way way : {Way::kLength, Way::kCancelled, Way::kStopString, Way::kReadOn, Way::kNone}) {
    SCOPED_TRACE(static_cast<int>(way));
    Twins twins(small_model());
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(Tokens{1, kUser} + twins.encode("Hi", false) + Tokens{kEnd, kAssistant});
    twins.greedy(answer(twins, way).tokens);
    if (way == Way::kReadOn) {
      ASSERT_TRUE(twins.session->read(" and").ok());
      twins.feed(twins.encode(" and", true));
    }
    ASSERT_FALSE(twins.session->say("user", "caf\xe9").ok()) << "changes nothing";
    ASSERT_TRUE(twins.session->say("user", "Bye").ok());
    twins.feed(Tokens{kEnd, kUser} + twins.encode("Bye", false) + Tokens{kEnd, kAssistant});
    twins.expect_same();
  }
}

TEST(SessionContext, TheModelsOwnEndIsWrittenOnce) {
  // The token that the model takes after three becomes its end.
  const auto ask = [](Twins& twins) {
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(Tokens{1, 3} + twins.encode("Hi", false) + Tokens{5, 4});
  };
  Twins scout(small_model());
  ask(scout);
  scout.greedy(3);
  const TokenId end = scout.next();
  std::string bytes = small_model_bytes();
  const std::string key = "tokenizer.ggml.eos_token_id";
  const std::size_t at = bytes.find(key);
  ASSERT_NE(at, std::string::npos);
  std::memcpy(bytes.data() + at + key.size() + 4, &end, sizeof end);
  const TemporaryFile file(to_bytes(bytes));
  for (const bool fail_first : {false, true}) {
    Twins twins(file.path());
    ask(twins);
    const GenerateResult result = twins.generate({.max_tokens = 400});
    ASSERT_EQ(result.finish_reason, FinishReason::kEnd);
    twins.greedy(result.tokens);
    ASSERT_EQ(twins.next(), end);
    if (fail_first) {
      ASSERT_FALSE(twins.session->say("user", "caf\xe9").ok());
      ASSERT_FALSE(twins.session->say("user", std::string(100000, '!')).ok()) << "longer than the context";
    }
    ASSERT_TRUE(twins.session->say("user", "Bye").ok());
    twins.feed(Tokens{end, 3} + twins.encode("Bye", false) + Tokens{5, 4});
    twins.expect_same();
  }
}

TEST(SessionContext, ThePlainTemplateEndsTheLine) {
  const TemporaryFile file(to_bytes(without_markers()));
  for (const Way way : {Way::kLength, Way::kCancelled, Way::kStopString, Way::kNone}) {
    SCOPED_TRACE(static_cast<int>(way));
    Twins twins(file.path());
    ASSERT_EQ(twins.model->chat->name(), "plain");
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(Tokens{1} + twins.encode("User: Hi\nAssistant:", false));
    const std::string text = twins.greedy(answer(twins, way).tokens);
    ASSERT_TRUE(twins.session->say("user", "Bye").ok());
    twins.feed(twins.encode(std::string(text.ends_with('\n') ? "" : "\n") + "User: Bye\nAssistant:", true));
    twins.expect_same();
  }
}

// An answer that runs into the next message has written its label already.
TEST(SessionContext, ThePlainStopTextIsNotWrittenTwice) {
  const std::string stop = "\nUser:";
  const auto ask = [](Twins& twins) {
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(Tokens{1} + twins.encode("User: Hi\nAssistant:", false));
  };
  std::string bytes = without_markers();
  // A token as long as the stop text that the model takes of its own becomes that text.
  std::string piece;
  {
    const TemporaryFile file(to_bytes(bytes));
    Twins scout(file.path());
    ask(scout);
    for (int i = 0; i < 200 && (piece.size() != stop.size() || piece.starts_with('<')); ++i) {
      piece = scout.model->tokenizer->vocabulary().pieces[static_cast<std::size_t>(scout.next())];
      scout.greedy(1);
    }
  }
  ASSERT_EQ(piece.size(), stop.size());
  std::string stored(8, '\0');
  stored[0] = static_cast<char>(stop.size());
  const std::size_t at = bytes.find(stored + piece);
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at + stored.size(), stop.size(), stop);
  const TemporaryFile file(to_bytes(bytes));
  for (const bool other_role : {false, true}) {
    Twins twins(file.path());
    ask(twins);
    const GenerateResult result = twins.generate({.max_tokens = 300, .ignore_eos = true});
    ASSERT_EQ(result.finish_reason, FinishReason::kStop);
    EXPECT_TRUE(twins.greedy(result.tokens).ends_with(stop));
    if (other_role) {
      ASSERT_TRUE(twins.session->say("system", "Bye").ok());
      twins.feed(twins.encode("\nSystem: Bye\n", true));
    } else {
      ASSERT_TRUE(twins.session->say("user", "Bye").ok());
      twins.feed(twins.encode(" Bye\nAssistant:", true));
    }
    EXPECT_EQ(twins.session->kv().seen, twins.seen());
    EXPECT_EQ(twins.generate({.max_tokens = 1, .ignore_eos = true}).tokens, 1);
  }
}

// phi-3 writes "<|user|>\n...<|end|>\n": with the small model's own markers, and a new line that no model writes.
TEST(SessionContext, WhatFollowsTheEndOfAnAnswerIsWritten) {
  constexpr TokenId kUser = 3;
  constexpr TokenId kAssistant = 4;
  constexpr TokenId kEnd = 5;
  for (const Way way : {Way::kLength, Way::kCancelled, Way::kStopString, Way::kReadOn, Way::kNone}) {
    SCOPED_TRACE(static_cast<int>(way));
    Twins twins(small_model(), "phi-3");
    ASSERT_EQ(twins.model->chat->name(), "jinja");
    const Tokens line = twins.encode("\n", false);
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(Tokens{1, kUser} + twins.encode("\nHi", false) + Tokens{kEnd} + line + Tokens{kAssistant} + line);
    twins.greedy(answer(twins, way).tokens);
    if (way == Way::kReadOn) {
      ASSERT_TRUE(twins.session->read(" and").ok());
      twins.feed(twins.encode(" and", true));
    }
    ASSERT_TRUE(twins.session->say("user", "Bye").ok());
    twins.feed(Tokens{kEnd} + line + Tokens{kUser} + twins.encode("\nBye", false) + Tokens{kEnd} + line +
               Tokens{kAssistant} + line);
    twins.expect_same();
  }
}

// The token that the model takes after three becomes its end: no end token of the template's, but an end.
TEST(SessionContext, WhatFollowsTheModelsOwnEndIsWritten) {
  const auto ask = [](Twins& twins) {
    const Tokens line = twins.encode("\n", false);
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(Tokens{1, 3} + twins.encode("\nHi", false) + Tokens{5} + line + Tokens{4} + line);
  };
  Twins scout(small_model(), "phi-3");
  ask(scout);
  scout.greedy(3);
  const TokenId end = scout.next();
  std::string bytes = small_model_bytes();
  const std::string key = "tokenizer.ggml.eos_token_id";
  std::memcpy(bytes.data() + bytes.find(key) + key.size() + 4, &end, sizeof end);
  const TemporaryFile file(to_bytes(bytes));
  Twins twins(file.path(), "phi-3");
  ask(twins);
  const GenerateResult result = twins.generate({.max_tokens = 400});
  ASSERT_EQ(result.finish_reason, FinishReason::kEnd);
  twins.greedy(result.tokens);
  ASSERT_EQ(twins.next(), end);
  ASSERT_TRUE(twins.session->say("user", "Bye").ok());
  const Tokens line = twins.encode("\n", false);
  twins.feed(Tokens{end} + line + Tokens{3} + twins.encode("\nBye", false) + Tokens{5} + line + Tokens{4} + line);
  twins.expect_same();
}

// Messages said one by one make the context of the whole conversation.
TEST(SessionContext, MessagesSaidMakeTheWholeConversation) {
  const std::vector<ChatMessage> talk = {
      {"system", "Be brief"}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}};
  for (const char* file :
       {"", "phi-3", "zephyr", "llama-2", "mistral-first", "chatml", "llama-3-dated", "llama-3-open"}) {
    SCOPED_TRACE(file);
    Twins twins(small_model(), file);
    for (const ChatMessage& message : talk) ASSERT_TRUE(twins.session->say(message.role, message.content).ok());
    const auto whole = twins.model->chat->render(talk, true);
    ASSERT_TRUE(whole.ok());
    twins.feed(*encode_chat(*twins.model->tokenizer, *whole));
    twins.expect_same();
  }
}

// A template that opens an answer with a thought, and writes past answers without one: the thought is closed, empty.
TEST(SessionContext, AnswersFillAnOpenedThought) {
  Twins twins(small_model(), "deepseek-thinks");
  ASSERT_TRUE(twins.session->say("user", "Hi").ok());
  ASSERT_TRUE(twins.session->say("assistant", "Hello").ok());
  ASSERT_TRUE(twins.session->say("user", "Bye").ok());
  const std::vector<ChatMessage> first = {{"user", "Hi"}};
  const auto opened = twins.model->chat->render(first, true);
  ASSERT_TRUE(opened.ok());
  EXPECT_TRUE(opened->text().ends_with("<think>\n"));
  twins.feed(*encode_chat(*twins.model->tokenizer, *opened) +
             twins.encode("\n</think>\n\nHello<\uFF5Cend\u2581of\u2581sentence\uFF5C>", true) +
             twins.encode("<\uFF5CUser\uFF5C>Bye<\uFF5CAssistant\uFF5C><think>\n", true));
  twins.expect_same();
}

TEST(SessionContext, ASystemMessageWaitsForTheUser) {
  const std::vector<ChatMessage> talk = {{"system", "Be brief"}, {"user", "Hi"}};
  for (const char* file : {"llama-2", "mistral-v3"}) {
    SCOPED_TRACE(file);
    Twins twins(small_model(), file);
    ASSERT_TRUE(twins.session->say("system", "Be brief").ok());
    EXPECT_EQ(twins.session->kv().seen, 0);
    EXPECT_FALSE(twins.session->generate({}, {}).ok()) << "nothing was read";
    EXPECT_FALSE(twins.session->say("system", "Twice").ok());
    EXPECT_FALSE(twins.session->say("user", "caf\xe9").ok()) << "changes nothing";
    twins.session = std::move(*twins.session->fork());
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(*encode_chat(*twins.model->tokenizer, *twins.model->chat->render(talk, true)));
    EXPECT_FALSE(twins.session->say("system", "Too late").ok());
    twins.expect_same();
  }
}

// Llama 2 and Mistral want an answer between two questions: one that nobody gave stands empty.
TEST(SessionContext, QuestionsWithoutAnswersTakeTurns) {
  Twins twins(small_model(), "mistral-first");
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(twins.session->say("user", "Hi").ok());
  EXPECT_GT(twins.generate({.max_tokens = 4, .ignore_eos = true}).tokens, 0);
  EXPECT_GT(twins.generate({.max_tokens = 4, .ignore_eos = true}).tokens, 0) << "goes on";
  ASSERT_TRUE(twins.session->say("user", "Bye").ok());
}

// A template whose end is spelled in many tokens, and a model that writes it as one.
TEST(SessionContext, AnEndThatIsNoTokenStopsTheAnswer) {
  const auto ask = [](Twins& twins, const std::string& end) {
    ASSERT_TRUE(twins.session->say("user", "Hi").ok());
    twins.feed(Tokens{1} + twins.encode("(user) Hi" + end + "\n(assistant) ", false));
  };
  for (std::size_t size = 4; size < 12; ++size) {
    const std::string end = "<" + std::string(size - 2, '~') + ">";
    const std::string source = "{% for message in messages %}{{ '(' + message['role'] + ') ' + message['content'] + '" +
                               end + "\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '(assistant) ' }}{% endif %}";
    Twins scout(small_model(), "", source);
    ASSERT_TRUE(scout.model->chat->failure().ok());
    ASSERT_EQ(scout.model->chat->stop(), std::vector<std::string>{end});
    ask(scout, end);
    std::string piece;
    for (int i = 0; i < 200 && (piece.size() != size || piece.starts_with('<')); ++i) {
      piece = scout.model->tokenizer->vocabulary().pieces[static_cast<std::size_t>(scout.next())];
      scout.greedy(1);
    }
    if (piece.size() != size) continue;
    std::string stored(8, '\0');
    stored[0] = static_cast<char>(size);
    std::string bytes = small_model_bytes();
    const std::size_t at = bytes.find(stored + piece);
    ASSERT_NE(at, std::string::npos);
    const TemporaryFile file(to_bytes(bytes.replace(at + stored.size(), size, end)));
    Twins twins(file.path(), "", source);
    ask(twins, end);
    const GenerateResult result = twins.generate({.max_tokens = 300, .ignore_eos = true});
    ASSERT_EQ(result.finish_reason, FinishReason::kStop);
    EXPECT_EQ(result.text.find(end), std::string::npos);
    EXPECT_TRUE(twins.greedy(result.tokens).ends_with(end));
    ASSERT_TRUE(twins.session->say("user", "Bye").ok());
    twins.feed(twins.encode("\n(user) Bye" + end + "\n(assistant) ", true));
    twins.expect_same();
    return;
  }
  FAIL() << "the model wrote no piece of a fitting length";
}

}  // namespace
}  // namespace kvasir::test
