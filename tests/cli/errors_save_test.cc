// kvasir run --save and --load: places where no session can be written or read, found before the run starts.
#include <sys/stat.h>

#include "cli/errors.h"

namespace kvasir::test {
namespace {

class ErrorsSave : public Errors {
 protected:
  // A run that would take minutes if the place were not looked at first.
  static Refused refused(const Arguments& more, const std::string& message) {
    Arguments all = {"-n", "100000", "--kv", "streaming", "--ignore-eos"};
    all.insert(all.end(), more.begin(), more.end());
    return {all, 2, message};
  }
  std::string kept(const std::string& name) const { return bytes_of(file(name)); }
};

TEST_F(ErrorsSave, Places) {
  const std::string fifo = file("fifo"), dangling = file("dangling"), loop = file("loop");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  std::filesystem::create_symlink(file("nothing"), dangling);
  std::filesystem::create_symlink(loop, loop);
  std::filesystem::create_symlink(fifo, file("to-fifo"));
  const std::string irregular = " is not a regular file";
  expect_all_refused(
      {
          refused({"--save", ""}, "--save needs the name of a file"),
          refused({"--load", ""}, "--load needs the name of a file"),
          refused({"--save", folder()}, "'" + folder() + "'" + irregular),
          refused({"--save", fifo}, "'" + fifo + "'" + irregular),
          // Found before anything is read.
          refused({"--save", file("new"), "--kv", "streaming:cap=64", "--demote", "q4"},
                  "a session under 'streaming:sinks=4,window=60@demote=q4' cannot be saved: session files do not hold "
                  "demoted tokens; run it without demote [--demote, --kv]"),
          refused({"--save", file("to-fifo")}, "'" + file("to-fifo") + "'" + irregular),
          refused({"--save", "/dev/null"}, "'/dev/null'" + irregular),
          refused({"--save", dangling}, "cannot follow '" + dangling + "': No such file or directory"),
          refused({"--save", loop}, "cannot follow '" + loop + "': Too many levels of symbolic links"),
          refused({"--save", file("no/session")},
                  "cannot create '" + file("no/session.partial") + "': No such file or directory"),
          refused({"--save", file("text/session")},
                  "cannot create '" + file("text/session.partial") + "': Not a directory"),
      },
      run_arguments({"-p", "x"}));
  struct stat st {};
  EXPECT_TRUE(::stat(fifo.c_str(), &st) == 0 && S_ISFIFO(st.st_mode));
  EXPECT_TRUE(std::filesystem::is_symlink(dangling) && std::filesystem::is_symlink(loop));
  EXPECT_FALSE(std::filesystem::exists(file("nothing")));
}

TEST_F(ErrorsSave, PlacesThatMayNotBeWritten) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  const std::string locked = file("locked"), only_read = file("read-only");
  std::filesystem::create_directory(locked);
  std::ofstream(only_read) << "mine";
  std::filesystem::permissions(locked, std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  std::filesystem::permissions(only_read, std::filesystem::perms::owner_read);
  expect_all_refused(
      {
          refused({"--save", locked + "/session"}, "cannot create '" + locked + "/session.partial': Permission denied"),
          refused({"--save", only_read}, "cannot write '" + only_read + "': Permission denied"),
      },
      run_arguments({"-p", "x"}));
  EXPECT_EQ(kept("read-only"), "mine");
}

TEST_F(ErrorsSave, FilesThatAreRead) {
  const std::string model = file("model.gguf"), text = file("text"), link = file("link"), chat = file("template");
  std::filesystem::copy_file(model_path(), model);
  std::filesystem::create_symlink(text, link);
  std::ofstream(chat) << "{{ messages[0].content }}";
  const std::string before = kept("text"), model_before = kept("model.gguf");
  const auto taken = [](const std::string& name) {
    return "'" + name + "' is the file that is read, and would be overwritten; give another name";
  };
  expect_all_refused(
      {
          refused({"-f", text, "--save", model}, taken(model)),
          refused({"-f", text, "--save", text}, taken(text)),
          refused({"-f", text, "--save", file("./text")}, taken(file("./text"))),
          refused({"-f", text, "--save", link}, taken(link)),
          refused({"-f", link, "--save", text}, taken(text)),
          refused({"-f", text, "--chat", "--chat-template", chat, "--save", chat}, taken(chat)),
      },
      {"run", "-t", "1", "-m", model});
  EXPECT_EQ(kept("text"), before);
  EXPECT_EQ(kept("model.gguf"), model_before);
  const std::string run =
      "'" + binary_path() + "' run -t 1 -n 1 -m '" + model + "' --save '" + text + "' <'" + text + "'";
  EXPECT_EQ(std::system((run + " >/dev/null 2>&1").c_str()) / 256, 2) << "the prompt on standard input";
  EXPECT_EQ(kept("text"), before);
}

// Generated text and errors may go to the same file.
TEST_F(ErrorsSave, AnErrorStartsALineBehindTheText) {
  const std::string log = file("log");
  const Finished done = run_model({"-p", "Once upon", "-n", "2", "--temp", "0", "-q", "--save", file("session")},
                                  {.output_file = log, .error_file = log, .file_size_limit = 2000});
  EXPECT_EQ(done.exit_code, 1);
  const std::string text = kept("log");
  const std::size_t error =
      text.find("kvasir: cannot write '" + file("session.partial") + "': File too large; make room");
  ASSERT_NE(error, std::string::npos) << text;
  ASSERT_GT(error, 1u) << text;
  EXPECT_EQ(text[error - 1], '\n') << text;
  EXPECT_NE(text[error - 2], '\n') << text;
  EXPECT_FALSE(std::filesystem::exists(file("session")));
}

TEST_F(ErrorsSave, WhatIsThereStays) {
  const std::string session = file("session"), link = file("link");
  std::ofstream(file("session.partial")) << "mine";
  ASSERT_EQ(run_model({"-p", "Once", "-n", "3", "--save", session}).exit_code, 0);
  EXPECT_EQ(kept("session.partial"), "mine");
  EXPECT_FALSE(std::filesystem::exists(file("session.partial-2")));
  // Loading and saving the same file is how a session goes on; a link stays one.
  std::filesystem::create_symlink(session, link);
  const std::string first = kept("session");
  ASSERT_EQ(run_model({"--load", session, "-n", "3", "--save", link}).exit_code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_NE(kept("session"), first);
  ASSERT_EQ(run_model({"--load", session, "-n", "3", "--save", session}).exit_code, 0);
}

}  // namespace
}  // namespace kvasir::test
