// kvasir run: each wrong command line and input, its exit code and message.
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "cli/errors.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

TEST_F(Errors, RunWithoutAModel) {
  const std::string model = model_path();
  const std::string text = file("text");
  expect_all_refused({
      {{}, 2, "a command is missing" + see("")},
      {{"frobnicate"}, 2, "there is no command 'frobnicate'" + see("")},
      {{"run", "-m"}, 2, "-m needs a value" + see("run")},
      {{"run", "-m", file("missing"), "-p", "x"},
       2,
       "cannot open '" + file("missing") + "': No such file or directory"},
      {{"run", "-m", folder(), "-p", "x"}, 2, no_model_in(folder())},
      {{"run", "-m", file("empty"), "-p", "x"}, 2, "'" + file("empty") + "': the file is empty; download it again"},
      {{"run", "-m", file("text"), "-p", "x"}, 2, "'" + text + "'" + kNoGguf},
      {{"run", "-m", file("binary"), "-p", "x"},
       2,
       "'" + file("binary") +
           "': this is not a GGUF file: it begins with '\\xff\\xfa\\x02\\x01' instead of 'GGUF'; convert the model to "
           "GGUF first"},
      {{"run", "-m", "/dev/null", "-p", "x"}, 2, "'/dev/null' is not a regular file"},
      {{"run", "-m", "/dev/zero", "-p", "x"}, 2, "'/dev/zero' is not a regular file"},
      {{"run", "-m", model, "-m", file("missing"), "-p", "x"},
       2,
       "cannot open '" + file("missing") + "': No such file or directory"},
  });
}

TEST_F(Errors, RunWithAConstraintThatSaysNothing) {
  const std::string model = model_path();
  for (const char* option : {"--json-schema", "--grammar", "--regex"}) {
    const Finished done = run_program({"run", "-m", model, "-p", "x", option, ""});
    EXPECT_EQ(done.exit_code, 2) << option;
    EXPECT_EQ(done.err.find(std::string("kvasir: ") + option + ": it is empty; give "), 0U) << done.err;
  }
  for (const auto& [option, value, part] : std::initializer_list<std::array<const char*, 3>>{
           {"--regex", "a{1,1000000}", "10000"},
           {"--grammar", "root ::= \"a\"{1,100000}", "10000"},
           {"--json-schema", "null", "a schema must be an object, true or false, not null"},
           {"--json-schema", "[]", "a schema must be an object, true or false, not []"},
           {"--json-schema", "false", "no value meets the schema: it is false"}}) {
    const Finished done = run_program({"run", "-m", model, "-p", "x", option, value});
    EXPECT_EQ(done.exit_code, 2) << option;
    EXPECT_NE(done.err.find(part), std::string::npos) << done.err;
  }
}

// The packed weights are mapped while the program writes.
TEST_F(Errors, RunWithWeightsThatBecomeShorter) {
  namespace fs = std::filesystem;
  const std::string weights = folder() + "/weights";
  const std::string text = folder() + "/text-of-shorter-weights";
  std::atomic<bool> ended = false;
  std::thread other([&] {
    std::error_code error;
    while (!ended && !(fs::file_size(text, error) > 0 && !error))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    for (const auto& entry : fs::directory_iterator(weights, error)) fs::resize_file(entry.path(), 0, error);
  });
  Surroundings surroundings;
  surroundings.output_file = text;
  const Finished done = run_program({"run", "-m", model_path(), "-p", "Once", "-n", "1000000", "--ignore-eos", "--kv",
                                     "streaming:cap=64", "--weight-dir", weights, "-q"},
                                    surroundings);
  ended = true;
  other.join();
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_EQ(done.err,
            "kvasir: a file of weights became shorter, or its disk failed, while it was in use; leave such files as "
            "they are while kvasir runs, and replace them by renaming\n");
}

TEST_F(Errors, RunOptions) {
  expect_all_refused(
      {
          {{"--frobnicate"}, 2, "the argument '--frobnicate' is not expected" + see("run")},
          {{"extra"}, 2, "the argument 'extra' is not expected" + see("run")},
          {{"-p"}, 2, "-p needs a value" + see("run")},
          {{"-f", "-", "-f", "-"}, 2, "--file - is given more than once; standard input can be read once"},
          {{"-f", file("binary")}, 2, "'" + file("binary") + "' is not valid UTF-8 at byte 0 (0xFF)" + kIconv},
          {{"-f", file("empty")}, 2, "'" + file("empty") + "' is empty; give a file with text"},
          {{"-f", file("missing")}, 2, "cannot open '" + file("missing") + "': No such file or directory"},
          {{"-n", "-5"}, 2, "-n -5 is below -1 (no limit)"},
          {{"-n", "abc"}, 2, "-n: 'abc' is not a whole number (-1 to 2^40)" + see("run")},
          {{"-n", "1e3"}, 2, "-n: '1e3' is not a whole number (-1 to 2^40)" + see("run")},
          {{"-n", "010"}, 2, "-n: '010' is not a whole number (-1 to 2^40)" + see("run")},
          {{"-n", "99999999999999999999"}, 2, "-n: '99999999999999999999' is out of range (-1 to 2^40)" + see("run")},
          {{"-n", ""}, 2, "-n: '' is not a whole number (-1 to 2^40)" + see("run")},
          {{"--chunk", "-1"}, 2, kChunk},
          {{"--chunk", "4097"}, 2, "--chunk 4097 is outside 1 to 4096 tokens (0: the policy's own)"},
          {{"--chunk", "99999999999"}, 2, "--chunk: '99999999999' is out of range (0 to 4096)" + see("run")},
          {{"--page", "33"}, 2, "a page of 33 tokens is not possible; choose 16, 32 or 64 [--page]"},
          {{"--page", "0"}, 2, "a page of 0 tokens is not possible; choose 16, 32 or 64 [--page]"},
          {{"--page", "-32"}, 2, "a page of -32 tokens is not possible; choose 16, 32 or 64 [--page]"},
          {{"--temp", "-1"}, 2, "--temp is -1; it must be at least 0 and at most 100"},
          {{"--temp", "nan"}, 2, "--temp is nan; it must be at least 0 and at most 100"},
          {{"--temp", "inf"}, 2, "--temp is inf; it must be at least 0 and at most 100"},
          {{"--temp", "1e300"}, 2, "--temp: '1e300' is out of range (0 to 100)" + see("run")},
          {{"--temp", "1e400"}, 2, "--temp: '1e400' is out of range (0 to 100)" + see("run")},
          {{"--temp", "hot"}, 2, "--temp: 'hot' is not a number (0 to 100)" + see("run")},
          {{"--top-p", "2"}, 2, "--top-p is 2; it must be greater than 0 and at most 1"},
          {{"--top-p", "0"}, 2, "--top-p is 0; it must be greater than 0 and at most 1"},
          {{"--top-p", "nan"}, 2, "--top-p is nan; it must be greater than 0 and at most 1"},
          {{"--min-p", "-0.1"}, 2, "--min-p is -0.1; it must be at least 0 and at most 1"},
          {{"--min-p", "1.5"}, 2, "--min-p is 1.5; it must be at least 0 and at most 1"},
          {{"--top-k", "-2"}, 2, "--top-k is -2; it must be at least 0, or -1 for all"},
          {{"--repeat-penalty", "0"}, 2, "--repeat-penalty is 0; it must be greater than 0 and at most 10"},
          {{"--repeat-penalty", "nan"}, 2, "--repeat-penalty is nan; it must be greater than 0 and at most 10"},
          {{"--frequency-penalty", "99"}, 2, "--frequency-penalty is 99; it must be at least -10 and at most 10"},
          {{"--presence-penalty", "-99"}, 2, "--presence-penalty is -99; it must be at least -10 and at most 10"},
          {{"--penalty-window", "-1"}, 2, "--penalty-window is -1; it must be at least 0 and at most 65536"},
          {{"--seed", "-2"}, 2, "--seed: '-2' is out of range (0 to 2^64 - 1)" + see("run")},
          {{"--seed", "18446744073709551616"},
           2,
           "--seed: '18446744073709551616' is out of range (0 to 2^64 - 1)" + see("run")},
          {{"--kv", ""}, 2, "--kv: a policy needs a name; 'kvasir policies' lists them" + see("run")},
          {{"--kv", "nope"}, 2, unknown_policy("nope")},
          {{"--kv", "recompute"}, 2, kEvaluationOnly},
          {{"--kv", "streaming:"},
           2,
           "policy spec 'streaming:': '' is not of the form key=value; " + kStreamingOptions},
          {{"--kv", "streaming:sinks"},
           2,
           "policy spec 'streaming:sinks': 'sinks' is not of the form key=value; " + kStreamingOptions},
          {{"--kv", "streaming:sinks="},
           2,
           "policy spec 'streaming:sinks=': 'sinks=' is not of the form key=value; " + kStreamingOptions},
          {{"--kv", "streaming:sinks=1,sinks=2"},
           2,
           "policy spec 'streaming:sinks=1,sinks=2': option 'sinks' is given twice"},
          {{"--kv", "streaming:foo=1"},
           2,
           "policy 'streaming' has no option 'foo'; its options are: sinks, window, cap, every, slack, overlap, "
           "refresh, max_drop, realign, protect"},
          {{"--kv", "streaming:window=0"}, 2, "policy 'streaming': window=0 must be a whole number, 1 to 2^40"},
          {{"--kv", "streaming:window=-1"}, 2, "policy 'streaming': window=-1 must be a whole number, 1 to 2^40"},
          {{"--kv", "streaming:window=99999999999999999999"},
           2,
           "policy 'streaming': window=99999999999999999999 must be a whole number, 1 to 2^40"},
          {{"--kv", "streaming:window=1000000000000"},
           1,
           "policy 'streaming:sinks=4,window=1000000000000' needs <number> bytes of KV memory, more than this machine "
           "can give (<number>); choose a smaller size [--kv]"},
          {{"--kv", "window:size=1000000000000"},
           1,
           "policy 'window:size=1000000000000' needs <number> bytes of KV memory, more than this machine can give "
           "(<number>); choose a smaller size [--kv]"},
          {{"--kv", "streaming:sinks=1000000000000,every=1000000000000"},
           1,
           "policy 'streaming:sinks=1000000000000,window=2044,every=1000000000000' needs <number> bytes of KV memory, "
           "more than this machine can give (<number>); choose a smaller size [--kv]"},
          {{"--kv", "streaming:cap=3"},
           2,
           "policy 'streaming': cap=3 leaves no window behind sinks=4, slack=0, overlap=0 and refresh=0; raise cap"},
          {{"--kv", "streaming:cap=100,window=50"}, 2, "policy 'streaming': give either cap or window, not both"},
          {{"--kv", "streaming:realign=sideways"},
           2,
           "policy 'streaming': realign=sideways must be one of: frames, rotate"},
          {{"--kv", "full:size=3"}, 2, "policy 'full' has no option 'size'; its options are: thoughts"},
          {{"--kv", "full:thoughts=drop"},
           2,
           "a session cannot drop thoughts, and its policy is 'full:thoughts=drop'; leave thoughts=drop out [--kv]"},
          {{"--kv-type", "q5"},
           2,
           "unknown KV type 'q5'; the types are: f32, f16, bf16, i16, q8, q4, q4o, q3, q2 [--kv-type]"},
          {{"--kv-type", "k=q8"},
           2,
           "KV type 'k=q8': it names no type for values; write for example q8, or k=q8,v=q4 for keys and values, "
           "or q4,recent=64,rotate=k [--kv-type]"},
          {{"--kv-memory", "abc"}, 2, "--kv-memory: 'abc' is no size" + kSize + see("run")},
          {{"--kv-memory", "1", "--kv", "full"}, 2, "a KV memory of 1 byte" + kNoPage},
          {{"--kv-memory", "-1"}, 2, "--kv-memory: '-1' is no size" + kSize + see("run")},
          {{"--kv-memory", "-1MiB"}, 2, "--kv-memory: '-1MiB' is no size" + kSize + see("run")},
          {{"--kv-memory", "5 parsecs"}, 2, "--kv-memory: '5 parsecs' is no size" + kSize + see("run")},
          {{"--kv-memory", "1.5"}, 2, "--kv-memory: '1.5' is no size" + kSize + see("run")},
          {{"--kv-memory", "1.5.0GiB"}, 2, "--kv-memory: '1.5.0GiB' is no size" + kSize + see("run")},
          {{"--kv-memory", "-1.5GiB"}, 2, "--kv-memory: '-1.5GiB' is no size" + kSize + see("run")},
          {{"--kv-memory", ""}, 2, "--kv-memory: '' is no size" + kSize + see("run")},
          {{"--kv-memory", "99999999TiB"},
           2,
           "--kv-memory: '99999999TiB' is too large; give 8EiB or less" + see("run")},
          {{"--isa", "sse9"}, 2, "no kernels 'sse9' on this machine; " + kernels() + " [--isa]"},
          {{"--isa", ""}, 2, "no kernels '' on this machine; " + kernels() + " [--isa]"},
          {{"--stop", ""}, 2, "an empty stop string would end every text; remove it [--stop]"},
          {{"-t", "99999"}, 2, "-t 99999 is outside 0 (one per core) to 1024"},
          {{"-t", "-1"}, 2, "-t -1 is outside 0 (one per core) to 1024"},
          {{"-t", "99999999999"}, 2, "-t: '99999999999' is out of range (0 to 1024)" + see("run")},
      },
      {"run", "-m", model_path(), "-p", "x"});
}

TEST_F(Errors, RunOptionsThatExcludeEachOther) {
  const std::string session = file("session");
  expect_all_refused(
      {
          {{"--samples", "0"}, 2, "--samples 0 is outside 1 to 64"},
          {{"--samples", "65"}, 2, "--samples 65 is outside 1 to 64"},
          {{"--beams", "-1"}, 2, "--beams -1 is outside 1 to 64 (0: none)"},
          {{"--samples", "2", "--beams", "2"}, 2, "--samples and --beams exclude each other; omit one of them"},
          {{"--beams", "2"}, 2, "--beams needs a number of tokens; give -n, 1 or more"},
          {{"--beams", "2", "-n", "5", "--temp", "1"},
           2,
           "--beams does not sample; omit the sampling options (--temp, --top-k, --seed, ...)"},
          {{"--beams", "2", "-n", "5", "--stop", "x"}, 2, "--beams does not support stop strings; omit --stop"},
          {{"--beams", "2", "-n", "5", "--length-penalty", "11"}, 2, "--length-penalty 11 is outside -10 to 10"},
          {{"--beams", "2", "-n", "5", "--save", session},
           2,
           "--save keeps one continuation; omit --samples and --beams"},
          {{"--samples", "2", "--save", session}, 2, "--save keeps one continuation; omit --samples and --beams"},
          {{"--load", session, "--demote", "q4"},
           2,
           "--load takes the policy from the file, which demotes nothing; omit --demote"},
          {{"--load", session, "--kv", "full"},
           2,
           "--load takes policy, page type, page size and chunk from the file; omit --kv, --kv-type, --page and "
           "--chunk"},
          {{"--system", "x"}, 2, "--system is for a chat; add --chat"},
          {{"--chat", "--system", "caf\xe9", "--chat-template", source_dir() + "/tests/chat/templates/llama-2.jinja"},
           2,
           "the text is not valid UTF-8 at byte 3 (0xE9)" + kIconv},
      },
      {"run", "-m", model_path(), "-p", "x"});
}

TEST_F(Errors, RunOptionsWithoutEffect) {
  expect_all_refused(
      {
          {{"--length-penalty", "2"}, 2, "--length-penalty scores beams; give --beams too"},
          {{"--samples", "2", "--temp", "0"},
           2,
           "--samples draws, and with --temp 0 all samples would be the same; omit one of them"},
      },
      run_arguments({"-p", "x", "-n", "2"}));
}

TEST_F(Errors, RunWithTooSmallAFileForWhatIsDemoted) {
  std::ofstream(file("longer")) << some_text(1900);
  const Arguments demoting = {"-f",       file("longer"), "-n", "2", "--kv", "streaming:sinks=4,window=28",
                              "--demote", "file"};
  const auto with = [&](const std::string& size) {
    Arguments all = demoting;
    all.insert(all.end(), {"--demote-size", size});
    return run_model(all);
  };
  expect_refused(
      with("1KiB"), 2,
      "--demote-size 1024 is too small: one page of each layer and KV head takes <number> bytes, and a text many "
      "of them");
  const Finished full = with("1MiB");
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_NE(full.err.find("the file for demoted pages may have 1048576 bytes, "), std::string::npos) << full.err;
  EXPECT_TRUE(full.err.ends_with("; give it more, or demote to memory [--demote-size]\n")) << full.err;
  EXPECT_EQ(with("64MiB").exit_code, 0);
}

// Behind 2^64 - 1 the seeds of samples would go on with 0, which draws one.
TEST_F(Errors, SamplesWithoutSeeds) {
  const Arguments last = {"-p", "x", "-n", "1", "--samples", "3", "--seed", "18446744073709551613"};
  EXPECT_EQ(run_json(last)["samples"][2]["seed"], 18446744073709551615ULL);
  expect_refused(run_model({"-p", "x", "-n", "1", "--samples", "3", "--seed", "18446744073709551614"}), 2,
                 "--seed 18446744073709551614 is too large for 3 samples, of which sample i has seed + i; give "
                 "18446744073709551613 or less [--samples]");
}

TEST_F(Errors, FilesWithoutAName) {
  const std::string model = model_path(), text = file("text");
  const auto unnamed = [](const std::string& option, const std::string& command) {
    return option + ": a file needs a name" + see(command);
  };
  expect_all_refused({
      {{"run", "-m", "", "-p", "x"}, 2, unnamed("-m", "run")},
      {{"run", "-m", model, "-f", ""}, 2, unnamed("-f", "run")},
      {{"run", "-m", model, "-p", "x", "--chat", "--chat-template", ""}, 2, unnamed("--chat-template", "run")},
      {{"info", ""}, 2, unnamed("model", "info")},
      {{"eval", "ppl", "-m", model, "-f", text, "-f", ""}, 2, unnamed("-f", "eval ppl")},
      {{"eval", "needle", "-m", model, "-f", ""}, 2, unnamed("-f", "eval needle")},
      {{"inspect", "-m", model, "-f", ""}, 2, unnamed("-f", "inspect")},
      {{"record", "-m", model, "-f", text, "-o", ""}, 2, unnamed("-o", "record")},
      {{"replay", "--policy", "full", "--trace", ""}, 2, unnamed("--trace", "replay")},
      {{"serve", "-m", model, "--sessions", ""}, 2, "--sessions: a folder needs a name" + see("serve")},
      {{"serve", "-m", model, "--name", ""}, 2, "--name: a model needs a name" + see("serve")},
  });
}

// Help on a command that does not exist is an error; an option that does not exist is not looked at before help.
TEST_F(Errors, HelpOnAnUnknownCommand) {
  expect_all_refused({
      {{"chat", "--help"}, 2, "there is no command 'chat'" + see("")},
      {{"--help", "chat"}, 2, "there is no command 'chat'" + see("")},
      {{"chat", "--version"}, 2, "there is no command 'chat'" + see("")},
      {{"eval", "chat", "-h"}, 2, "there is no command 'chat'" + see("eval")},
  });
  for (const Arguments& arguments : std::vector<Arguments>{{"--help"}, {"run", "--help"}, {"eval", "ppl", "--help"}}) {
    const Finished done = run_program(arguments);
    EXPECT_EQ(done.exit_code, 0) << done.err;
    EXPECT_EQ(done.out.find("there is no"), std::string::npos);
  }
}

// A terminal would take C1 control characters (U+009B starts an escape sequence) and bytes that are not UTF-8.
TEST_F(Errors, MessagesHoldNoRawBytes) {
  const std::string raw = "a\xff\x1b\xc2\x9b\xc3\xa9";
  const std::string shown = R"(a\xff\x1b\xc2\x9b)"
                            "\xc3\xa9";
  const std::string file = "'" + shown + "'";
  expect_all_refused({
      {{raw}, 2, "there is no command " + file + see("")},
      {{"run", "-m", raw, "-p", "x"}, 2, "cannot open " + file + ": No such file or directory"},
      {{"run", "-m", model_path(), "-p", "x", "--kv", raw}, 2, unknown_policy(shown)},
      {{"run", "-m", model_path(), "-p", "x", raw}, 2, "the argument " + file + " is not expected" + see("run")},
      {{"run", "-m", model_path(), "-p", "x", "-n", "\xff"},
       2,
       R"(-n: '\xff' is not a whole number (-1 to 2^40))" + see("run")},
  });
}

// A search that cannot run one token says so, instead of giving an empty beam.
TEST_F(Errors, BeamsWithoutMemoryForATokenOfEach) {
  expect_refused(run_model({"-p", some_text(20), "-n", "8", "--kv", "full", "--kv-memory", "600KiB", "--beams", "64"}),
                 1,
                 "the KV memory of <number> bytes has no room for a first token of 64 beams; give it more, or search "
                 "with fewer beams [--kv-memory, --beams]");
}

TEST_F(Errors, Prompt) {
  std::ofstream(file("huge"));
  std::filesystem::resize_file(file("huge"), (std::uint64_t{256} << 20) + 1);  // without blocks on the disk
  expect_all_refused(
      {
          {{"-p", "\xff\xfe"}, 2, "the text is not valid UTF-8 at byte 0 (0xFF)" + kIconv},
          {{"-p", "caf\xe9"}, 2, "the text is not valid UTF-8 at byte 3 (0xE9)" + kIconv},
          {{"-p", ""}, 2, "the prompt is empty; give some text with -p or -f"},
          {{}, 2, "the prompt is empty; give some text with -p or -f"},
          {{"-f", "-"}, 2, "the prompt is empty; give some text with -p or -f"},
          {{"-f", file("missing")}, 2, "cannot open '" + file("missing") + "': No such file or directory"},
          {{"-f", file("empty")}, 2, "the prompt is empty; give some text with -p or -f"},
          {{"-f", file("binary")}, 2, "'" + file("binary") + "' is not valid UTF-8 at byte 0 (0xFF)" + kIconv},
          {{"-f", file("huge")},
           1,
           "'" + file("huge") + "' is larger than the 268435456 bytes accepted here; split it"},
          {{"-f", folder()}, 2, "cannot read '" + folder() + "': Is a directory"},
          // Of a chat, too, the byte is counted in what the user gave.
          {{"--chat", "-p", "caf\xe9"}, 2, "the text is not valid UTF-8 at byte 3 (0xE9)" + kIconv},
          {{"--chat", "--system", "a\xff", "-p", "x"}, 2, "the text is not valid UTF-8 at byte 1 (0xFF)" + kIconv},
      },
      run_arguments({}));
}

// Adapters that are no adapters, and sessions that go on with others than they were saved with.
TEST_F(Errors, Adapters) {
  const std::string reference = source_dir() + "/tests/reference";
  const std::string model = reference + "/originals/llama.gguf", adapter = reference + "/adapters/llama.gguf";
  const auto error_of = [&](Arguments more) {
    Arguments all = {"run", "-p", "hello", "-n", "3", "-t", "1", "-q"};
    all.insert(all.end(), more.begin(), more.end());
    const Finished done = run_program(all);
    EXPECT_EQ(done.exit_code, done.err.empty() ? 0 : 2) << done.err;
    return done.err;
  };
  const auto expect = [&](const Arguments& more, const char* words) {
    const std::string error = error_of(more);
    EXPECT_NE(error.find(words), std::string::npos) << error;
  };
  expect({"-m", adapter}, "this file is a LoRA adapter, not a model; give it with --lora");
  expect({"-m", model, "--lora", adapter + ":x1"}, "'x1' behind the file's name is no scale");
  expect({"-m", model, "--lora", adapter + ":"}, "'' behind the file's name is no scale");
  expect({"-m", model, "--lora", adapter + ":1e38"}, "outside -1000 to 1000");
  expect({"-m", model, "--lora", file("none") + ":2"}, "No such file");
  const std::string plain = file("plain.kvs"), adapted = file("adapted.kvs");
  EXPECT_EQ(error_of({"-m", model, "--save", plain}), "");
  EXPECT_EQ(error_of({"-m", model, "--lora", adapter + ":0.5", "--save", adapted}), "");
  EXPECT_EQ(error_of({"-m", model, "--load", plain}), "");
  EXPECT_EQ(error_of({"-m", model, "--lora", adapter + ":0", "--load", plain}), "");
  EXPECT_EQ(error_of({"-m", model, "--lora", adapter + ":0.5", "--load", adapted}), "");
  expect({"-m", model, "--lora", adapter, "--load", plain}, "no adapter (omit --lora)");
  expect({"-m", model, "--lora", adapter, "--load", adapted}, "llama.gguf:0.5; give that");
  // The vocabulary has no token for these bytes.
  expect({"-m", model, "--grammar", "root ::= \"\u00e9\""}, "no token of the model's vocabulary continues the text");
  const auto expect_of = [&](const Arguments& command, const char* words) {
    const Finished done = run_program(command);
    EXPECT_NE((done.out + done.err).find(words), std::string::npos) << done.out << done.err;
  };
  expect_of({"tokenize", "-m", adapter, "-p", "x"}, "this file is a LoRA adapter, not a model");
  const std::string part = file("part.gguf");
  std::filesystem::copy_file(adapter, part);
  std::filesystem::resize_file(part, std::filesystem::file_size(adapter) - 100);
  expect_of({"plan", "-m", model, "--lora", part}, "run will refuse this: ");
  expect_of({"plan", "-m", model, "--memory", "300KB"}, "bytes and a pass ");
  // A name with a colon is the file's, if there is such a file.
  const std::string odd = file("odd:0.5");
  std::filesystem::copy_file(adapter, odd);
  EXPECT_EQ(error_of({"-m", model, "--lora", odd, "--load", plain}).find("No such file"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::test
