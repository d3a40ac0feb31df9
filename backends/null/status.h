// How this backend turns what its vendor reports into a status and a message. Every vendor call of a real backend goes
// through one function here: the code that means "fine" returns, every other throws sdk::Failure with the vendor's
// call, code and message. An unknown code is VENDOR_ERROR, never success.
#pragma once

namespace concord::null {

[[noreturn]] void unimplemented(const char* slot);

}  // namespace concord::null
