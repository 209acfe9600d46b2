// What enters a session's context: texts in parts, and messages after each way an answer can end.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>

#include "kvasir/engine.h"
#include "support/engine_fixture.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

using Tokens = std::vector<TokenValue>;

std::string bundled() {
  return source_dir() + "/models/kvasir-mini-3m-q8_0.gguf";
}

std::string bundled_bytes() {
  std::ifstream file(bundled(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<std::byte> to_bytes(const std::string& text) {
  std::vector<std::byte> out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

// The bundled model without its markers.
std::string without_markers() {
  std::string bytes = bundled_bytes();
  const std::size_t at = bytes.find("<|user|>");
  EXPECT_NE(at, std::string::npos);
  return bytes.replace(at, 8, "<|xxxx|>");
}

// A session, and the same fed by hand with token ids.
class Twins {
 public:
  explicit Twins(const std::string& path) {
    EngineOptions options;
    options.model = path;
    options.threads = 1;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    session = std::move(*(*engine)->new_session({.policy = "full"}));
    model = load(path, {.threads = 1});
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
          next_ = static_cast<TokenValue>(std::max_element(logits.begin(), logits.end()) - logits.begin());
          return true;
        });
    EXPECT_TRUE(status.ok());
  }
  TokenValue next() const { return next_; }  // that a greedy sampler takes
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
  std::int64_t seen() const { return runner_->sequence().group().next_id(); }
  void expect_same() {
    EXPECT_EQ(session->kv().seen, seen());
    EXPECT_EQ(generate({.max_tokens = 12, .ignore_eos = true}).text, greedy(12));
  }

  std::unique_ptr<Session> session;
  std::shared_ptr<LoadedModel> model;

 private:
  std::unique_ptr<SequenceRunner> runner_;
  TokenValue next_ = 0;
};

Tokens operator+(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

TEST(SessionContext, TextInPartsIsTakenAsItStands) {
  for (const char* second : {"believable", "\nthere"}) {
    Twins twins(bundled());
    const Tokens tokens = twins.encode(second, true);
    std::string bytes;
    for (const TokenValue token : tokens) bytes += twins.model->tokenizer->bytes_of(token);
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
  constexpr TokenValue kUser = 3;
  constexpr TokenValue kAssistant = 4;
  constexpr TokenValue kEnd = 5;
  for (const Way way : {Way::kLength, Way::kCancelled, Way::kStopString, Way::kReadOn, Way::kNone}) {
    SCOPED_TRACE(static_cast<int>(way));
    Twins twins(bundled());
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
  Twins scout(bundled());
  ask(scout);
  scout.greedy(3);
  const TokenValue end = scout.next();
  std::string bytes = bundled_bytes();
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

}  // namespace
}  // namespace kvasir::test
