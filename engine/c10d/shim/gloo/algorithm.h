// Replaces Gloo's header of this name, which the wheel does not contain. c10d's own headers include it. The shim only
// uses pointers to the types in this folder, so declarations are enough.
#pragma once
