#include "bootstrap/handshake.h"
