// ChatTranscript without a model: the tokens of each message, after each way that an answer can end.
#include "chat/chat_transcript.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <random>

#include "chat/template_file.h"
#include "support/shared_data.h"
#include "text/vocabularies.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;
using Kind = ChatEnding::Kind;
using test::template_file;

// The small model's markers.
constexpr TokenId kSmallBos = 1;
constexpr TokenId kSmallUser = 3;
constexpr TokenId kSmallAssistant = 4;
constexpr TokenId kSmallEnd = 5;

Tokens operator+(Tokens left, const Tokens& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

// Tokenizer and template of the small model, the template replaced by a file or by a source.
struct Model {
  explicit Model(const std::string& file = {}, const std::string& source = {}, bool markers = true) {
    const auto small = test::tokenizer_of_file(test::small_model());
    Vocabulary vocabulary = small->vocabulary();
    if (!markers) vocabulary.pieces[kSmallUser] = "<|xxxx|>";
    auto made = make_chat_template(vocabulary, {.source = file.empty() ? source : template_file(file)});
    EXPECT_TRUE(made.ok());
    chat = std::move(*made);
    tokenizer = test::tokenizer_of(std::move(vocabulary));
  }

  Tokens encode(const std::string& text, bool continues) const {
    return test::encode(*tokenizer, text, {.add_special = false, .parse_special = false, .continues = continues});
  }

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat;
};

// A conversation and its context, as a session holds them.
struct Talk {
  explicit Talk(const Model& owner) : model(&owner), transcript(*owner.tokenizer, *owner.chat) {}

  ContextEnd end() const { return {static_cast<std::int64_t>(context.size()), context}; }

  // Returns the tokens that entered the context.
  Tokens say(const std::string& role, const std::string& content) {
    auto message = transcript.render(role, content, end());
    EXPECT_TRUE(message.ok()) << message.status().message();
    if (!message.ok()) return {};
    const Tokens tokens = message->tokens;
    EXPECT_EQ(message->waits, tokens.empty());
    context = context + tokens;
    transcript.add(std::move(*message), static_cast<std::int64_t>(tokens.size()));
    return tokens;
  }
  bool refuses(const std::string& role, const std::string& content) const {
    return transcript.render(role, content, end()).status().code() == StatusCode::kInvalidArgument;
  }
  void answer(const std::string& text, ChatTranscript::Answer how) {
    transcript.begin_answer();
    context = context + model->encode(text, true);
    how.text = text;
    transcript.end_answer(how, context);
  }
  void read(const std::string& text) {
    context = context + model->encode(text, true);
    transcript.add_text();
  }

  const Model* model;
  ChatTranscript transcript;
  Tokens context;
};

TEST(ChatTranscript, MarkersCloseWhatEndedWithoutThem) {
  const Model model;
  for (const FinishReason reason : {FinishReason::kLength, FinishReason::kCancelled, FinishReason::kStop,
                                    FinishReason::kContext, FinishReason::kKvMemory}) {
    for (const bool reads_on : {false, true}) {
      Talk talk(model);
      EXPECT_TRUE(talk.transcript.stops().empty());
      EXPECT_EQ(talk.say("user", "Hi"),
                Tokens({kSmallBos, kSmallUser}) + model.encode("Hi", false) + Tokens({kSmallEnd, kSmallAssistant}));
      EXPECT_EQ(talk.transcript.state().ending.kind, Kind::kAwaited);
      talk.answer(" Hello there", {.finish_reason = reason});
      EXPECT_EQ(talk.transcript.state().ending.kind, Kind::kOpen);
      if (reads_on) talk.read(" and");
      EXPECT_TRUE(talk.refuses("user", "caf\xe9"));
      EXPECT_EQ(talk.say("user", "Bye"),
                Tokens({kSmallEnd, kSmallUser}) + model.encode("Bye", false) + Tokens({kSmallEnd, kSmallAssistant}));
      EXPECT_EQ(talk.transcript.messages()[1].content, " Hello there");
      ASSERT_EQ(talk.transcript.messages().size(), 3U);
    }
  }
}

TEST(ChatTranscript, TheModelsOwnEndIsWrittenOnce) {
  const Model model;
  const TokenId eos = *model.tokenizer->vocabulary().eos;
  for (const TokenId end : {kSmallEnd, eos}) {
    Talk talk(model);
    talk.say("user", "Hi");
    talk.answer(" Hello", {.finish_reason = FinishReason::kEnd, .end_token = end});
    EXPECT_TRUE(talk.refuses("user", "caf\xe9"));
    EXPECT_EQ(talk.say("user", "Bye"),
              Tokens({end, kSmallUser}) + model.encode("Bye", false) + Tokens({kSmallEnd, kSmallAssistant}));
  }
  // Text that follows takes the place of the end.
  Talk talk(model);
  talk.say("user", "Hi");
  talk.answer(" Hello", {.finish_reason = FinishReason::kEnd, .end_token = kSmallEnd});
  talk.read(" and");
  EXPECT_EQ(talk.say("user", "Bye"),
            Tokens({kSmallEnd, kSmallUser}) + model.encode("Bye", false) + Tokens({kSmallEnd, kSmallAssistant}));
}

TEST(ChatTranscript, WhatFollowsTheEndOfAnAnswerIsWritten) {
  const Model model("phi-3");
  ASSERT_EQ(model.chat->name(), "jinja");
  const Tokens line = model.encode("\n", false);
  const TokenId eos = *model.tokenizer->vocabulary().eos;
  const Tokens bye = line + Tokens{kSmallUser} + model.encode("\nBye", false) + Tokens{kSmallEnd} + line +
                     Tokens{kSmallAssistant} + line;
  for (const TokenId end : {kNoToken, kSmallEnd, eos}) {
    Talk talk(model);
    EXPECT_EQ(talk.say("user", "Hi"), Tokens({kSmallBos, kSmallUser}) + model.encode("\nHi", false) +
                                          Tokens{kSmallEnd} + line + Tokens{kSmallAssistant} + line);
    if (end == kNoToken) {
      talk.answer("Hello", {.finish_reason = FinishReason::kLength});
    } else {
      talk.answer("Hello", {.finish_reason = FinishReason::kEnd, .end_token = end});
    }
    EXPECT_EQ(talk.say("user", "Bye"), Tokens{end == kNoToken ? kSmallEnd : end} + bye);
  }
}

TEST(ChatTranscript, ThePlainTemplateEndsTheLine) {
  const Model model("", "", false);
  ASSERT_EQ(model.chat->name(), "plain");
  for (const std::string text : {" Hello", " Hello\n"}) {
    Talk talk(model);
    EXPECT_EQ(talk.say("user", "Hi"), Tokens{kSmallBos} + model.encode("User: Hi\nAssistant:", false));
    EXPECT_EQ(talk.transcript.stops().size(), 2U);
    talk.answer(text, {.finish_reason = FinishReason::kLength});
    EXPECT_EQ(talk.say("user", "Bye"),
              model.encode(std::string(text.ends_with('\n') ? "" : "\n") + "User: Bye\nAssistant:", true));
  }
}

// An answer that runs into the next message has written its label already.
TEST(ChatTranscript, ThePlainStopTextIsNotWrittenTwice) {
  const Model model("", "", false);
  const auto stopped = [&](bool mid_character) {
    Talk talk(model);
    talk.say("user", "Hi");
    talk.transcript.begin_answer();
    talk.context = talk.context + model.encode(" Hello\nUser:", true);
    talk.transcript.end_answer({.text = " Hello", .finish_reason = FinishReason::kStop, .mid_character = mid_character},
                               talk.context);
    return talk;
  };
  Talk talk = stopped(false);
  EXPECT_EQ(talk.transcript.state().ending.kind, Kind::kStop);
  EXPECT_EQ(talk.transcript.state().ending.stop, "\nUser:");
  EXPECT_EQ(talk.transcript.messages().back().content, " Hello");
  Talk other = talk;
  EXPECT_EQ(talk.say("user", "Bye"), model.encode(" Bye\nAssistant:", true));
  EXPECT_EQ(other.say("system", "Bye"), model.encode("\nSystem: Bye\n", true));
  EXPECT_EQ(stopped(true).say("user", "Bye"), model.encode("\nUser: Bye\nAssistant:", true));
}

TEST(ChatTranscript, MessagesSaidMakeTheWholeConversation) {
  const std::vector<ChatMessage> talk = {
      {"system", "Be brief"}, {"user", "Hi"}, {"assistant", "Hello"}, {"user", "Bye"}};
  for (const char* file :
       {"", "phi-3", "zephyr", "llama-2", "mistral-first", "chatml", "llama-3-dated", "llama-3-open"}) {
    SCOPED_TRACE(file);
    const Model model(file);
    Talk said(model);
    for (const ChatMessage& message : talk) said.say(message.role, message.content);
    const auto whole = model.chat->render(talk, true);
    ASSERT_TRUE(whole.ok());
    EXPECT_EQ(said.context, *encode_chat(*model.tokenizer, *whole));
  }
}

TEST(ChatTranscript, AnswersFillAnOpenedThought) {
  const Model model("deepseek-thinks");
  Talk talk(model);
  talk.say("user", "Hi");
  EXPECT_EQ(talk.say("assistant", "Hello"),
            model.encode("\n</think>\n\nHello<\uFF5Cend\u2581of\u2581sentence\uFF5C>", true));
  EXPECT_EQ(talk.say("user", "Bye"), model.encode("<\uFF5CUser\uFF5C>Bye<\uFF5CAssistant\uFF5C><think>\n", true));
}

TEST(ChatTranscript, ASystemMessageWaitsForTheUser) {
  const std::vector<ChatMessage> said = {{"system", "Be brief"}, {"user", "Hi"}};
  for (const char* file : {"llama-2", "mistral-v3"}) {
    SCOPED_TRACE(file);
    const Model model(file);
    Talk talk(model);
    EXPECT_TRUE(talk.say("system", "Be brief").empty());
    EXPECT_EQ(talk.transcript.messages().size(), 1U);
    EXPECT_FALSE(talk.transcript.state().started);
    EXPECT_TRUE(talk.refuses("system", "Twice"));
    EXPECT_TRUE(talk.refuses("user", "caf\xe9"));
    Talk fork = talk;
    for (Talk* one : {&talk, &fork})
      EXPECT_EQ(one->say("user", "Hi"), *encode_chat(*model.tokenizer, *model.chat->render(said, true)));
    EXPECT_TRUE(talk.refuses("system", "Too late"));
  }
}

// Llama 2 and Mistral want an answer between two questions: one that nobody gave is recorded empty.
TEST(ChatTranscript, QuestionsWithoutAnswersTakeTurns) {
  const Model model("mistral-first");
  Talk talk(model);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(talk.say("user", "Hi").empty());
  EXPECT_EQ(talk.transcript.messages().size(), 5U);
  talk.answer(" one", {.finish_reason = FinishReason::kLength});
  talk.answer(" two", {.finish_reason = FinishReason::kLength});
  EXPECT_EQ(talk.transcript.messages().back().content, " one two");
  EXPECT_FALSE(talk.say("user", "Bye").empty());
  EXPECT_EQ(talk.transcript.messages().size(), 7U);
}

// A message that waits for the next one is checked when it comes, not when it is written.
TEST(ChatTranscript, WaitingMessagesAreCheckedAtOnce) {
  for (const char* file : {"llama-2", "mistral-first", "mistral-v3"}) {
    SCOPED_TRACE(file);
    const Model model(file);
    Talk talk(model);
    const Status refused = talk.transcript.render("system", "caf\xe9", talk.end()).status();
    EXPECT_EQ(refused.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("not valid UTF-8 at byte 3 (0xE9)"), std::string::npos) << refused.message();
    EXPECT_TRUE(talk.say("system", "Be kind").empty()) << "it waits";
    EXPECT_FALSE(talk.say("user", "Hi").empty());
  }
}

TEST(ChatTranscript, MessagesThatDidNotEnterLeaveNoTrace) {
  const Model model;
  Talk talk(model);
  talk.say("user", "Hi");
  const auto refused = talk.transcript.render("user", "Bye", talk.end());
  ASSERT_TRUE(refused.ok());
  EXPECT_EQ(refused->messages.size(), 2U) << "an empty answer, and the message";
  talk.transcript.add(*refused, 0);
  EXPECT_EQ(talk.transcript.messages().size(), 1U);
  EXPECT_EQ(talk.transcript.state().ending.kind, Kind::kAwaited);
  // One that entered in part is a message, and open.
  talk.context = talk.context + Tokens(refused->tokens.begin(), refused->tokens.begin() + 3);
  talk.transcript.add(*refused, 3);
  EXPECT_EQ(talk.transcript.messages().size(), 3U);
  EXPECT_EQ(talk.transcript.state().ending.kind, Kind::kOpen);
  EXPECT_EQ(talk.say("system", "Stop").front(), kSmallEnd);
}

// Without a message, generations and texts leave no messages behind; only an end token waits.
TEST(ChatTranscript, PlainTextIsNoConversation) {
  const Model model;
  Talk talk(model);
  talk.read("Once");
  talk.answer(" upon", {.finish_reason = FinishReason::kLength});
  EXPECT_EQ(talk.transcript.state().ending.kind, Kind::kClosed);
  EXPECT_TRUE(talk.transcript.messages().empty());
  talk.answer(" a", {.finish_reason = FinishReason::kEnd, .end_token = kSmallEnd});
  EXPECT_EQ(talk.transcript.state().ending.kind, Kind::kEndToken);
  Talk other = talk;
  EXPECT_EQ(talk.say("user", "Hi").front(), kSmallEnd);
  other.read(" time");
  EXPECT_EQ(other.say("user", "Hi").front(), kSmallUser);
}

// Random conversations, continued from their state at every step.
TEST(ChatTranscript, ContinuesFromItsState) {
  std::array<int, 5> kinds{};
  for (const char* file : {"", "phi-3", "llama-2", "mistral-v3", "deepseek-thinks", "plain"}) {
    SCOPED_TRACE(file);
    const bool plain = file == std::string("plain");
    const Model model(plain ? "" : file, "", !plain);
    std::mt19937 random(7);
    for (int round = 0; round < 30; ++round) {
      Talk whole(model);
      Talk parts(model);
      for (int step = 0; step < 12; ++step) {
        const ChatState state = parts.transcript.state();
        ++kinds[static_cast<std::size_t>(state.ending.kind)];
        auto next = ChatTranscript::from_state(*model.tokenizer, *model.chat, state);
        ASSERT_TRUE(next.ok()) << next.status().message();
        parts.transcript = std::move(*next);
        const auto both = [&](const auto& act) {
          act(whole);
          act(parts);
        };
        const std::string text = " some " + std::to_string(random() % 100);
        switch (random() % 6) {
          case 0:
          case 1:
          case 2: {
            const char* role = std::array{"user", "assistant", "system"}[random() % 3];
            const auto message = whole.transcript.render(role, text, whole.end());
            if (message.ok()) {
              const Tokens tokens = whole.say(role, text);
              ASSERT_EQ(parts.say(role, text), tokens);
            } else {
              ASSERT_TRUE(parts.refuses(role, text));
            }
            break;
          }
          case 3:
            if (!whole.context.empty()) both([&](Talk& talk) { talk.read(text); });
            break;
          case 4:
            if (!whole.context.empty())
              both([&](Talk& talk) {
                talk.answer(text, {.finish_reason = FinishReason::kEnd, .end_token = kSmallEnd});
              });
            break;
          default:
            if (!whole.context.empty())
              both([&](Talk& talk) { talk.answer(text + "\nUser:", {.finish_reason = FinishReason::kStop}); });
        }
        ASSERT_EQ(parts.context, whole.context);
      }
    }
  }
  for (const int seen : kinds) EXPECT_GT(seen, 20);
}

TEST(ChatTranscript, DamagedStatesAreRefused) {
  const Model model("", "", false);
  Talk talk(model);
  talk.say("user", "Hi");
  const ChatState state = talk.transcript.state();
  ASSERT_TRUE(ChatTranscript::from_state(*model.tokenizer, *model.chat, state).ok());
  const std::vector<std::function<void(ChatState&)>> damages = {
      [](ChatState& s) { s.messages[0].role = "nobody"; },
      [](ChatState& s) { s.messages.clear(); },
      [](ChatState& s) { s.started = false; },
      [](ChatState& s) { s.ending.kind = static_cast<Kind>(9); },
      [](ChatState& s) { s.ending.kind = Kind::kEndToken; },
      [](ChatState& s) {
        s.ending = {Kind::kEndToken, 100000, ""};
      },
      [](ChatState& s) {
        s.ending = {Kind::kEndToken, 40, ""};
      },
      [](ChatState& s) { s.ending.token = kSmallEnd; },
      [](ChatState& s) { s.ending.kind = Kind::kStop; },
      [](ChatState& s) {
        s.ending = {Kind::kStop, kNoToken, "other"};
      },
      [](ChatState& s) { s.ending.stop = "\nUser:"; },
  };
  for (std::size_t i = 0; i < damages.size(); ++i) {
    ChatState damaged = state;
    damages[i](damaged);
    EXPECT_EQ(ChatTranscript::from_state(*model.tokenizer, *model.chat, damaged).status().code(), StatusCode::kDataLoss)
        << i;
  }
}

}  // namespace
}  // namespace kvasir
