// kvasir eval: each wrong command line and input, its exit code and message.
#include "cli/errors.h"

namespace kvasir::test {
namespace {

TEST_F(Errors, Eval) {
  expect_all_refused({
      {{"eval"}, 2, "a command is missing" + see("eval")},
      {{"eval", "frobnicate"}, 2, "there is no command 'frobnicate'" + see("eval")},
  });
}

TEST_F(Errors, EvalPpl) {
  const std::string model = model_path();
  const std::string text = file("text");
  expect_all_refused({
      {{"eval", "ppl", "-m", model}, 2, "--file is required" + see("eval ppl")},
      {{"eval", "ppl", "-m", model, "-f", file("missing")},
       2,
       "cannot open '" + file("missing") + "': No such file or directory"},
      {{"eval", "ppl", "-m", model, "-f", folder()},
       2,
       "the folder '" + folder() + "' holds no text: no file's name ends in .txt"},
      {{"eval", "ppl", "-m", model, "-f", "-", "-f", "-"},
       2,
       "-f -: standard input can be read only once; give it once"},
      {{"eval", "ppl", "-m", model, "-f", file("empty"), "--json"}, 2, "the text is empty; give some text"},
      {{"eval", "ppl", "-m", model, "-f", file("binary"), "--json"},
       2,
       "'" + file("binary") + "' is not valid UTF-8 at byte 0 (0xFF)" + kIconv},
  });
  expect_all_refused(
      {
          {{"--tokens", "-1"}, 2, "--tokens, --windows and --skip count something; they cannot be negative"},
          {{"--tokens", "999999"},
           2,
           "the text has 53 tokens, not the 999999 asked for; give a longer text or a smaller --tokens"},
          {{"--windows", "3"}, 2, "--windows needs --window, their length in tokens"},
          {{"--windows", "9223372036854775807", "--window", "9"},
           2,
           "the text has 53 tokens, not 9223372036854775807 windows of 9; give a longer text"},
          {{"--skip", "-5"}, 2, "--tokens, --windows and --skip count something; they cannot be negative"},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--kv-type", "f16", "--kv-type", "f16,rope=long"},
           2,
           "KV type 'f16,rope=long': the model has no other angles for long texts; leave rope=long out [--kv-type]"},
          {{"--json", "--chunk", "-1"}, 2, kChunk},
          {{"--json", "--window", "-3"}, 2, "--window -3 is outside 4 to 2^24 tokens (0: one stream)"},
          {{"--json", "--skip", "9999"},
           2,
           "leaving 9999 tokens unscored leaves nothing of 53 to score; leave fewer out [--skip]"},
          {{"--json", "--kv-memory", "1"}, 2, "a KV memory of 1 byte" + kNoPage},
          {{"--json", "--kv", "recompute:size=0"}, 2, "policy 'recompute': size=0 must be a whole number, 1 to 2^24"},
          {{"--skip", "5", "--window", "20"},
           2,
           "only a single stream can start with unscored tokens; omit them, or the windows [--skip, --window]"},
          {{"--score", "all"}, 2, "--score says what of each window counts; give --window too"},
          {{"--score", "half", "--window", "20"}, 2, "--score: half not in {all,second-half}" + see("eval ppl")},
          {{"--bins", "-1"},
           2,
           "--bins -1 is outside 0 to 52: no more than the positions that are scored, or than 10000"},
          {{"--bins", "few"}, 2, "--bins: 'few' is not a whole number (0 or more)" + see("eval ppl")},
          {{"--bins", "10", "--window", "20"},
           2,
           "--bins 10 is outside 0 to 9: no more than the positions that are scored, or than 10000"},
          {{"--compare-full", "--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--compare-full", "--kv-memory", "1"}, 2, "a KV memory of 1 byte" + kNoPage},
          {{"--report"}, 2, "--report needs a value" + see("eval ppl")},
          {{"--report", ""}, 2, "--report: a report needs a file to be written to" + see("eval ppl")},
          {{"--report", folder()}, 2, "cannot open '" + folder() + "': Is a directory"},
          {{"-f", file("missing")}, 2, "cannot open '" + file("missing") + "': No such file or directory"},
          {{text}, 2, "the argument '" + text + "' is not expected; a text is given by -f" + see("eval ppl")},
      },
      {"eval", "ppl", "-m", model, "-f", text});
}

TEST_F(Errors, EvalNeedle) {
  const std::string model = model_path();
  const std::string text = file("text");
  expect_all_refused({
      {{"eval", "needle", "-m", model}, 2, "--file is required" + see("eval needle")},
      {{"eval", "needle", "-m", model, "-f", file("missing")},
       2,
       "cannot open '" + file("missing") + "': No such file or directory"},
      {{"eval", "needle", "-m", model, "-f", text},
       2,
       "the text has 52 tokens, but a prompt of 512 needs 484 of filler; give a longer text or smaller lengths "
       "[--lengths]"},
      {{"eval", "needle", "-m", model, "-f", text, "--json"},
       2,
       "the text has 52 tokens, but a prompt of 512 needs 484 of filler; give a longer text or smaller lengths "
       "[--lengths]"},
      {{"eval", "needle", "-m", model, "-f", file("empty"), "--lengths", "60"}, 2, "the text is empty; give some text"},
      {{"eval", "needle", "-m", model, "-f", file("binary"), "--lengths", "60"},
       2,
       "'" + file("binary") + "' is not valid UTF-8 at byte 0 (0xFF)" + kIconv},
      {{"eval", "needle", "-m", model, "-f", text, "--lengths", "20"},
       2,
       "a prompt of 20 tokens has no room for the fact and the question, 32 tokens; make it longer [--lengths]"},
      {{"eval", "needle", "-m", model, "-f", text, "--lengths", ""},
       2,
       "--lengths: '' is not a whole number (1 or more)" + see("eval needle")},
      {{"eval", "needle", "-m", model, "-f", text, "--lengths", "60,x"},
       2,
       "--lengths: 'x' is not a whole number (1 or more)" + see("eval needle")},
      {{"eval", "needle", "-m", model, "-f", text, "--lengths", "-60"},
       2,
       "a length of -60 is outside 1 to 8388608 tokens [--lengths]"},
      {{"eval", "needle", "-m", model, "-f", text, "--lengths", "99999999999999999999"},
       2,
       "--lengths: '99999999999999999999' is out of range (1 to 2^63 - 1)" + see("eval needle")},
  });
  expect_all_refused(
      {
          {{"--depths", "2"}, 2, "a depth of 2 is outside 0 to 1 [--depths]"},
          {{"--depths", "nan"}, 2, "a depth of nan is outside 0 to 1 [--depths]"},
          {{"--depths", "0.5,deep"}, 2, "--depths: '0.5,deep' is not a number (0 to 1)" + see("eval needle")},
          {{"--trials", "0"}, 2, "--trials 0 is outside 1 to 100000"},
          {{"--seed", "-1"}, 2, "--seed: '-1' is out of range (0 to 2^64 - 1)" + see("eval needle")},
          {{"--fact", "nothing"}, 2, "the fact 'nothing' must hold {value} once [--fact]"},
          {{"--ask", "{value}?"}, 2, "the question '{value}?' must hold {value} at its end only [--ask]"},
          {{"--chunk", "-1"}, 2, kChunk},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--kv", "recompute"}, 2, kEvaluationOnly},
          {{"--kv-memory", "1"}, 2, "a KV memory of 1 byte" + kNoPage},
      },
      {"eval", "needle", "-m", model, "-f", text, "--lengths", "60"});
}

TEST_F(Errors, EvalRestream) {
  const std::string model = model_path();
  const std::string text = file("text");
  expect_all_refused({
      {{"eval", "restream", "-m", model}, 2, "--file is required" + see("eval restream")},
      {{"eval", "restream", "-m", model, "-f", file("missing")},
       2,
       "cannot open '" + file("missing") + "': No such file or directory"},
      {{"eval", "restream", "-m", model, "-f", file("empty")}, 2, "the text is empty; give some text"},
  });
  expect_all_refused(
      {
          {{},
           2,
           "a distance of 64 tokens goes back before the beginning of the 53 that are read; read a longer text, or "
           "give a shorter distance [--distances, --fill]"},
          {{"--fill", "-1", "--distances", "5"}, 2, "--fill counts tokens; it cannot be negative"},
          {{"--fill", "9999", "--distances", "5"},
           2,
           "the text has 53 tokens, not the 9999 asked for; give a longer text or a smaller --fill"},
          {{"--distances", ""}, 2, "--distances: '' is not a whole number (1 or more)" + see("eval restream")},
          {{"--distances", "1"}, 2, "a distance of 1 token leaves nothing to score; give 2 or more [--distances]"},
          {{"--distances", "-8"}, 2, "a distance of -8 tokens leaves nothing to score; give 2 or more [--distances]"},
          {{"--distances", "8,x"}, 2, "--distances: 'x' is not a whole number (1 or more)" + see("eval restream")},
          {{"--fill", "20", "--distances", "20"},
           2,
           "a distance of 20 tokens goes back before the beginning of the 20 that are read; read a longer text, or "
           "give a shorter distance [--distances, --fill]"},
          {{"--distances", "8", "--chunk", "5000"},
           2,
           "--chunk 5000 is outside 1 to 4096 tokens (0: the policy's own)"},
          {{"--distances", "8", "--kv", "recompute"}, 2, kEvaluationOnly},
          {{"--distances", "8", "--kv-memory", "1"}, 2, "a KV memory of 1 byte" + kNoPage},
      },
      {"eval", "restream", "-m", model, "-f", text});
}

TEST_F(Errors, EvalQuality) {
  expect_all_refused(
      {
          {{"--kv", "streaming:cap=64", "--kv", "h2o:budget=64"},
           2,
           "--kv is given 2 times, and takes one policy; run each of them"},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--tokens", "-1"}, 2, "--tokens counts something; it cannot be negative"},
      },
      {"eval", "quality", "-m", model_path(), "-f", file("text")});
}

TEST_F(Errors, EmptyTextsAndTextsOfOneToken) {
  const std::string empty = "the text is empty; give some text";
  std::filesystem::create_directory(file("texts"));
  std::ofstream(file("texts/a.txt")) << some_text(50);
  std::ofstream(file("texts/b.txt"));
  std::ofstream(file("letter")) << "a";
  const std::string model = model_path();
  expect_all_refused({
      {{"eval", "ppl", "-m", model, "-f", file("texts")}, 2, file("texts/b.txt") + ": " + empty},
      {{"inspect", "-m", model, "-f", file("empty")}, 2, empty},
      {{"record", "-m", model, "-f", file("empty"), "-o", file("out.npy")}, 2, empty},
      {{"eval", "ppl", "-m", model, "-f", file("letter"), "--tokens", "1"},
       2,
       "1 token of the text is too few to score: at least 2 are needed; give a larger --tokens"},
      {{"eval", "ppl", "-m", model, "-f", file("texts/a.txt"), "--tokens", "3", "--window", "4"},
       2,
       "3 tokens of the text are too few to score: at least 4 are needed; give a larger --tokens or a smaller "
       "--window"},
      {{"eval", "ppl", "-m", model, "-f", file("letter"), "--skip", "1", "--tokens", "2"},
       2,
       "leaving 1 token unscored leaves nothing of 2 to score; leave fewer out [--skip]"},
      {{"inspect", "-m", model, "-f", file("letter"), "--tokens", "1"},
       2,
       "a text of 1 token cannot be inspected; give one of 2 to 16384 [--tokens]"},
  });
}

TEST_F(Errors, EvalOptionsWithoutEffect) {
  expect_all_refused(
      {
          {{"--bins", "5"}, 2, "--bins makes curves for --json and --report; give one of them too"},
          {{"--window", "10", "--windows", "2", "--tokens", "20"},
           2,
           "--windows says how much of each text is used; omit --tokens"},
      },
      {"eval", "ppl", "-m", model_path(), "-f", file("text")});
  const std::string report = "--matrix and --layers are for the report; give --report too";
  expect_all_refused({{{"--matrix", "8"}, 2, report}, {{"--layers", "1", "--json"}, 2, report}},
                     {"inspect", "-m", model_path(), "-f", file("text")});
}

}  // namespace
}  // namespace kvasir::test
