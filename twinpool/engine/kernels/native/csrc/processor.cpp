// Whether this processor, and the system under it, have the instructions that this library was built with.
#include "twinpool_native.h"

#ifdef __aarch64__

#ifdef __linux__
#include <asm/hwcap.h>
#include <sys/auxv.h>

int tp_usable(void) {
  constexpr unsigned long NEEDED = HWCAP_ASIMDDP | HWCAP_ATOMICS;
  return (getauxval(AT_HWCAP) & NEEDED) == NEEDED;
}
#else
int tp_usable(void) { return 1; }  // Apple's have had them all along
#endif

#else

// Asked of CPUID, not of __builtin_cpu_supports, which needs a part of the compiler's runtime that Zig leaves empty.
// Bits: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, CPUID.
#include <cpuid.h>

namespace {

bool has(unsigned word, int bit) { return word >> bit & 1; }

// The states that the system saves when it switches threads.
unsigned saved_states() {
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

int tp_usable(void) {
  constexpr unsigned YMM = 0x06, ZMM = 0xe6;
  unsigned a, b, c, d, ebx, ecx;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !has(c, 27)) return 0;
  if (!__get_cpuid_count(7, 0, &a, &ebx, &ecx, &d)) return 0;
  bool usable = has(c, 12) && has(c, 29) && has(ebx, 5) && (saved_states() & YMM) == YMM;  // FMA, F16C, AVX2
#ifdef __AVX512VNNI__
  usable = usable && (saved_states() & ZMM) == ZMM && has(ebx, 16) && has(ebx, 30) && has(ebx, 31) && has(ecx, 11);
#endif
  return usable;
}

#endif
