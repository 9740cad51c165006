#include "bootstrap/interfaces.h"
