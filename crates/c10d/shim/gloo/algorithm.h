// Stands in for Gloo's header of this name, which the wheel does not ship. c10d's own headers include it; only pointers to
// the types declared in this folder cross into the shim, so declarations are enough.
#pragma once
