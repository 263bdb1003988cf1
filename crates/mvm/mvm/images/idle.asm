; idle: true sleep. Nothing but serial input ever wakes this guest, and nothing comes of it.
; The timer is put in one-shot mode, so that it fires once into a masked controller and never
; again; the serial receive interrupt is the only one unmasked, at the controller and at the UART.
bits 16
org 0x7C00

        jmp 0:start             ; some firmware enters at 07C0:0000
start:  cli
        xor ax, ax
        mov ds, ax
        mov ss, ax
        mov sp, 0x7C00
        mov word [0x0C * 4], serial     ; IRQ 4 arrives as vector 0x0C
        mov [0x0C * 4 + 2], ax

        mov al, 0x30            ; PIT channel 0: mode 0, interrupt on terminal count
        out 0x43, al
        xor al, al
        out 0x40, al
        out 0x40, al
        mov al, 0xEF            ; master controller: only IRQ 4
        out 0x21, al
        mov al, 0xFF            ; second controller: none
        out 0xA1, al

        mov dx, 0x3FB
        mov al, 0x03            ; 8 data bits, no parity, divisor latch closed
        out dx, al
        mov dx, 0x3FC
        mov al, 0x0B            ; DTR, RTS, and OUT2: the gate to the interrupt line
        out dx, al
        mov dx, 0x3F9
        mov al, 0x01            ; interrupt on received data
        out dx, al
        sti
sleep:  hlt
        jmp sleep

serial: push ax                 ; take the byte, forget it
        push dx
        mov dx, 0x3F8
        in al, dx
        mov al, 0x20            ; end of interrupt
        out 0x20, al
        pop dx
        pop ax
        iret

        times 510 - ($ - $$) db 0
        dw 0xAA55
