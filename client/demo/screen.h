// client/demo/screen.h: the demo's words for a person. Colour only on a terminal, and not with $NO_COLOR. Not
// thread-safe.
#ifndef GPUMEM_CLIENT_DEMO_SCREEN_H_
#define GPUMEM_CLIENT_DEMO_SCREEN_H_

#include <cstdint>
#include <string>

namespace gpumem::demo {

class Screen {
 public:
  Screen();
  void Title(const std::string& text);
  void Chapter(const std::string& text);  // numbered from 1
  void Say(const std::string& text);
  void Check(bool held, const std::string& text);
  // A command and what it printed.
  void Command(const std::string& command, const std::string& output);
  void Summary(bool good, const std::string& text);

 private:
  void Line(const char* colour, const std::string& text);
  bool colour_ = false;
  int chapter_ = 0;
};

std::string Bytes(std::uint64_t bytes);  // "256 MiB"; exact bytes where no unit fits
std::string Milliseconds(double ms);     // "412 ms", "1.3 s"
std::string Count(std::uint64_t n, const char* one, const char* many);

}  // namespace gpumem::demo

#endif  // GPUMEM_CLIENT_DEMO_SCREEN_H_
