// kvasir info, tokenize, plan, policies and bench: each wrong command line and input, its exit code and message.
#include "cli/errors.h"

namespace kvasir::test {
namespace {

TEST_F(Errors, Info) {
  const std::string model = model_path();
  const std::string text = file("text");
  expect_all_refused({
      {{"info", file("missing")}, 2, "cannot open '" + file("missing") + "': No such file or directory"},
      {{"info", folder()}, 2, no_model_in(folder())},
      {{"info", file("empty")}, 2, "'" + file("empty") + "': the file is empty; download it again"},
      {{"info", text}, 2, "'" + text + "'" + kNoGguf},
      {{"info", model, "extra"}, 2, "the argument 'extra' is not expected" + see("info")},
  });
}

TEST_F(Errors, Tokenize) {
  const std::string model = model_path();
  const std::string text = file("text");
  expect_all_refused({
      {{"tokenize", "-m", text, "-p", "x"}, 2, "'" + text + "'" + kNoGguf},
      {{"tokenize", "-m", model, "-p", "\xff"}, 2, "the text is not valid UTF-8 at byte 0 (0xFF)" + kIconv},
  });
}

TEST_F(Errors, Plan) {
  const std::string text = file("text");
  expect_all_refused({
      {{"plan", "-m", text}, 2, "'" + text + "'" + kNoGguf},
  });
  expect_all_refused(
      {
          {{"-c", "-1"}, 2, "-c is -1; it must be 0 to 2^40 tokens (0: the trained context)"},
          {{"--ctx", "99999999999999"},
           2,
           "--ctx is 99999999999999; it must be 0 to 2^40 tokens (0: the trained context)"},
          {{"--ctx", "5", "--prompt", "9"}, 2, "--prompt 9 is more than --ctx 5"},
          {{"--prompt", "-7"}, 2, "--prompt -7 is below -1 (all tokens)"},
          {{"--batch", "0"}, 2, "--batch 0 is outside 1 to 65536 sequences"},
          {{"--chunk", "-1"}, 2, kChunk},
          {{"--page", "3"}, 2, "a page of 3 tokens is not possible; choose 16, 32 or 64 [--page]"},
          {{"--kv", ""}, 2, "--kv: a policy needs a name; 'kvasir policies' lists them" + see("plan")},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--kv", "full", "--ctx", "99999999999"},
           2,
           "policy 'full' keeps up to 99999999999 tokens; plan at most 2^24 of them"},
          {{"--kv", "streaming:window=100000000000", "--ctx", "1000000000000"},
           2,
           "policy 'streaming:window=100000000000' keeps up to 100000000005 tokens; plan at most 2^24 of them"},
          {{"--memory", "abc"}, 2, "--memory: 'abc' is no size" + kSize + see("plan")},
      },
      {"plan", "-m", model_path()});
}

TEST_F(Errors, Bench) {
  expect_all_refused(
      {
          {{"--prefill", "-1"}, 2, "--prefill -1 is outside 0 to 2^26 tokens"},
          {{"--prefill", "99999999"}, 2, "--prefill 99999999 is outside 0 to 2^26 tokens"},
          {{"--prefill", "0", "--decode", "0"},
           2,
           "there is nothing to measure; give tokens to prefill or decode [--prefill, --decode]"},
          {{"--repeat", "0"}, 2, "--repeat 0 is outside 1 to 1000"},
          {{"--depth", "-1"}, 2, "a depth of -1 is outside 0 to 2^26 tokens [--depth]"},
          {{"--depth", "1,x"}, 2, "--depth: 'x' is not a whole number (0 to 2^26)" + see("bench")},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--kv", "recompute"}, 2, kEvaluationOnly},
          {{"--decode", "0", "--batch", "2"}, 2, "--batch is for decoding; omit it, or --decode 0"},
      },
      {"bench", "-m", model_path()});
}

TEST_F(Errors, Policies) {
  expect_all_refused({
      {{"policies", "extra"}, 2, unknown_policy("extra")},
      {{"policies", "full", "extra"}, 2, "the argument 'extra' is not expected" + see("policies")},
  });
}

}  // namespace
}  // namespace kvasir::test
